"""Ids and layouts of the scheduler's tracepoints, read from tracefs.

Where tracefs is not mounted and sgtop may mount, a short-lived child mounts it in a mount namespace of its own,
prints the two files and ends: nothing changes on the host. Layouts come from the ``format`` files, because kernels
differ (real-time kernels have a longer common header, ``sched_wakeup`` lost a field in 5.14).
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
EVENTS = ("sched_switch", "sched_wakeup")


class TracefsError(OSError):
    """The tracepoints' ids cannot be read; the text says why, ``mend`` how to change that."""

    def __init__(self, why: str, mend: str) -> None:
        super().__init__(why)
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Field:
    """Where a field stands in the raw data: offset and size in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Event:
    """One tracepoint."""

    id: int
    fields: dict[str, Field]


_FIELD = re.compile(r"field:[^;]*?\b(\w+)(?:\[[^\]]*\])?;\s*offset:(\d+);\s*size:(\d+);")


def parse_format(text: str) -> Event:
    """An ``events/…/format`` file.

    Raises:
        ValueError: it has no ID or no fields.
    """
    m = re.search(r"^ID:\s*(\d+)", text, re.M)
    fields = {name: Field(int(o), int(s)) for name, o, s in _FIELD.findall(text)}
    if m is None or not fields:
        raise ValueError("not a tracepoint format")
    return Event(int(m.group(1)), fields)


def _read_here() -> tuple[dict[str, str], str]:
    """(event → format text, why it failed)."""
    why = "tracefs is not mounted"
    for place in PLACES:
        texts: dict[str, str] = {}
        try:
            for name in EVENTS:
                with open(f"{place}/events/sched/{name}/format") as f:
                    texts[name] = f.read()
        except PermissionError:
            why = f"tracefs at {place} cannot be read by this user"
        except OSError:
            continue
        else:
            return texts, ""
    return {}, why


_CHILD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, REC, PRIVATE = 0x20000, 0x4000, 0x40000
place = sys.argv[1].encode()
if libc.unshare(NEWNS): raise SystemExit(3)
if libc.mount(b"none", b"/", None, ctypes.c_ulong(REC | PRIVATE), None): raise SystemExit(3)
there = os.path.isdir(sys.argv[1] + "/events")
if not there and libc.mount(b"nodev", place, b"tracefs", ctypes.c_ulong(0), None): raise SystemExit(3)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def in_private_mount(command: Sequence[str]) -> list[str]:
    """``command`` as one that sees tracefs although the host has not mounted it; needs CAP_SYS_ADMIN."""
    return [sys.executable, "-I", "-S", "-c", _CHILD, PLACES[0], *command]


def mounted() -> bool:
    """Whether tracefs is there and may be read."""
    return bool(_read_here()[0])


def _read_in_private_mount() -> dict[str, str]:
    files = [f"{PLACES[0]}/events/sched/{name}/format" for name in EVENTS]
    try:
        done = subprocess.run(in_private_mount(["cat", *files]), capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    # Each file begins with "name: sched_…".
    parts = [p for p in re.split(r"(?m)^(?=name: )", done.stdout) if p]
    return dict(zip(EVENTS, parts, strict=True)) if done.returncode == 0 and len(parts) == len(EVENTS) else {}


def load() -> tuple[Event, Event]:
    """(sched_switch, sched_wakeup).

    Raises:
        TracefsError: neither a mounted tracefs nor the right to mount one; or a kernel without these events.
    """
    texts, why = _read_here()
    if not texts:
        texts = _read_in_private_mount()
    if not texts:
        mend = (
            "sudo mount -t tracefs -o mode=755 nodev /sys/kernel/tracing"
            if "mounted" in why
            else "sudo mount -o remount,mode=755 /sys/kernel/tracing"
        )
        raise TracefsError(why, mend)
    try:
        switch, wakeup = (parse_format(texts[name]) for name in EVENTS)
    except ValueError as e:
        raise TracefsError(str(e), "report the kernel's version") from e
    for event, names in (
        (switch, ("prev_comm", "prev_pid", "prev_state", "next_comm", "next_pid")),
        (wakeup, ("pid",)),
    ):
        gone = [n for n in names if n not in event.fields]
        if gone:
            raise TracefsError(f"this kernel's tracepoints lack {', '.join(gone)}", "report the kernel's version")
    return switch, wakeup


SAMPLE = struct.Struct("<IIQI4xI")
"""The part of a sample before its raw data: pid, tid, time, cpu, length of the raw data."""


class SwitchLayout:
    """Compiled access to both events' raw data, whatever the kernel's offsets are."""

    def __init__(self, switch: Event, wakeup: Event) -> None:
        self.switch_id, self.wakeup_id = switch.id, wakeup.id
        f = switch.fields
        state = f["prev_state"]
        self.prev = self._compile(
            [
                ("16s", f["prev_comm"]),
                ("i", f["prev_pid"]),
                ("q" if state.size == 8 else "i", state),
                ("16s", f["next_comm"]),
                ("i", f["next_pid"]),
            ]
        )
        self.switch_raw = max(x.offset + x.size for x in f.values())
        self.wake_pid = wakeup.fields["pid"].offset
        self.wake_raw = max(x.offset + x.size for x in wakeup.fields.values())

    @staticmethod
    def _compile(parts: list[tuple[str, Field]]) -> struct.Struct:
        """One Struct over all fields, which stand in ascending order in every kernel so far.

        Raises:
            TracefsError: they do not.
        """
        text, at = "<", 0
        for code, field in parts:
            if field.offset < at or struct.calcsize(code) != field.size:
                raise TracefsError("this kernel's sched_switch has an unknown layout", "report the kernel's version")
            text += f"{field.offset - at}x{code}" if field.offset > at else code
            at = field.offset + field.size
        return struct.Struct(text)
