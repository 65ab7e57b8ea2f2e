"""What the keys R and S do: begin and end a recording, save the last minutes. In words for a toast."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sgtop_core.model.snapshot import Snapshot

if TYPE_CHECKING:
    from sgtop_core.recording.recorder import Recorder

NONE = "this screen has no recorder: sgtop record makes recordings"


def toggle(recorder: Recorder | None, snapshot: Snapshot | None) -> tuple[str, bool]:
    """Begin a recording in the working folder, or end the one that runs; (what happened, whether one runs now)."""
    from sgtop_core.recording.errors import RecordingError
    from sgtop_core.recording.keeper import file_name

    if recorder is None:
        return NONE, False
    if recorder.state().path is not None:
        path = recorder.stop()
        return f"recorded: {path} ({_size(path)})", False
    name = file_name(snapshot, time.time())
    try:
        recorder.start(name)
    except RecordingError as e:
        return f"{e.what}: {e.why}" if e.why else e.what, False
    return f"recording to {Path(name).absolute()}; R ends it", True


def save(recorder: Recorder | None, snapshot: Snapshot | None) -> str:
    """Save the ring; what happened."""
    from sgtop_core.recording.errors import RecordingError
    from sgtop_core.recording.keeper import file_name

    if recorder is None:
        return NONE
    seconds = recorder.state().ring_seconds
    try:
        path = recorder.save(file_name(snapshot, time.time(), "saved"))
    except RecordingError as e:
        return f"{e.what}: {e.why}" if e.why else e.what
    return f"the last {seconds:.0f} s saved: {path} ({_size(path)})"


def _size(path: str | None) -> str:
    try:
        return file_size(os.path.getsize(path or ""))
    except OSError:
        return "size unknown"


def file_size(size: int) -> str:
    """``44 kB``, ``1.2 MB``."""
    return f"{size / 1e6:.1f} MB" if size >= 999_500 else f"{size / 1e3:.0f} kB" if size >= 1000 else f"{size} bytes"
