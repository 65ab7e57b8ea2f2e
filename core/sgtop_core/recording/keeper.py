"""A recorder beside a live session: one call to begin, and a file whenever a finding begins."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from sgtop_agent import wire

from sgtop_core.model.snapshot import Snapshot

from .errors import RecordingError
from .recorder import Recorder
from .writer import refuse_existing

RING_S = 300.0
"""Seconds of the past that are kept in memory; about 1 to 25 MB, by ranks and steps a second."""
AFTER_S = 10.0
"""Seconds that are waited after a finding began, so that its file shows what followed."""
MAX_FILES = 20
"""Files that findings may cause in one run."""


class Watched(Protocol):
    """What is needed of a session."""

    taps: list[Callable[[str, wire.Frame, int], None]]

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""


def attach(session: Watched, *, ring_s: float = RING_S, on_line: Callable[[str], None] | None = None) -> Recorder:
    """A recorder that sees everything ``session`` takes in. Call it before the session starts, close it after."""

    def meta() -> dict[str, Any]:
        return {
            "made_by": "sgtop",
            "unix": time.time(),
            "mono_ns": time.monotonic_ns(),
            "host": platform.node(),
            "kernel": platform.release(),
        }

    recorder = Recorder(ring_s=ring_s, meta=meta, on_line=on_line)
    session.taps.append(recorder.tap)
    return recorder


def file_name(snapshot: Snapshot | None, unix: float, word: str = "") -> str:
    """``sgtop-MODEL-20261129-213000.sgtop``: where to record when nobody said."""
    model = Path(snapshot.server.model or "").name if snapshot is not None else ""
    model = "".join(c if c.isalnum() or c in "._-" else "-" for c in model)
    parts = ("sgtop", model, time.strftime("%Y%m%d-%H%M%S", time.localtime(unix)), word)
    return "-".join(p for p in parts if p) + ".sgtop"


class OnAlert:
    """Saves the ring some seconds after each finding that begins. Call :meth:`look` with every snapshot."""

    def __init__(
        self,
        recorder: Recorder,
        folder: str | os.PathLike[str],
        *,
        after_s: float = AFTER_S,
        severities: frozenset[str] = frozenset({"warning", "critical"}),
        max_files: int = MAX_FILES,
    ) -> None:
        self._recorder = recorder
        self._folder = Path(folder)
        self._after = after_s
        self._severities = severities
        self._left = max_files
        self._active: set[tuple[str, str | None]] = set()
        self._due: float | None = None
        self._name = ""

    def look(self, s: Snapshot) -> str | None:
        """The path of a file that was just written.

        Raises:
            RecordingError: it could not be.
        """
        now = {(a.id, a.rank) for a in s.alerts if a.active and a.severity in self._severities}
        new = sorted(now - self._active, key=str)
        self._active = now
        if new and self._due is None and self._left > 0:
            self._due, self._name = s.time + self._after, new[0][0]
        if self._due is None or s.time < self._due:
            return None
        self._due = None
        self._left -= 1
        return self._recorder.save(self._folder / file_name(s, s.time, self._name))


def can_record_to(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Say early what would fail late.

    Raises:
        RecordingError: it is a folder, or there already; or its own folder cannot be written in.
    """
    refuse_existing(Path(path), overwrite)
    can_record_into(Path(path).parent)


def can_record_into(folder: str | os.PathLike[str]) -> None:
    """Say early what would fail late.

    Raises:
        RecordingError: there is no such folder, or no permission to write in it.
    """
    if not os.path.isdir(folder):
        there = next((str(p) for p in (Path(folder), *Path(folder).parents) if os.path.exists(p)), "/")
        if not os.path.isdir(there):
            raise RecordingError(f"{there} is a file, not a folder", "", "another -o")
        raise RecordingError(f"{folder} is not a folder", "", f"mkdir -p {shlex.quote(str(folder))}")
    if not os.access(folder, os.W_OK):
        raise RecordingError(f"no permission to write in {folder}", "", "another -o")
