"""Finding the scheduler object and its running event loop, by the frames of its threads. No scan of the heap."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from . import versions

MAX_DEPTH = 200
_HERE = __file__.rsplit("/", 1)[0] + "/"
"""Where our own frames come from; they are not shown."""


@dataclass(frozen=True)
class Found:
    """The scheduler, the name of its event loop (empty: it does not run yet) and the thread that runs it."""

    scheduler: Any
    loop: str
    ident: int
    tid: int
    loop_code: CodeType | None = None


def _self_of(frame: FrameType) -> Any:
    """``self`` of a frame, leaving nothing behind.

    Before Python 3.13 ``f_locals`` stores a dict of all locals on the frame, where it would keep a batch and its
    tensors alive for as long as the event loop runs. So it is emptied again.
    """
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return None
    values = frame.f_locals
    found = values.get("self")
    if type(values) is dict and found is not None:
        values.clear()
    return found


def _native_id(ident: int) -> int:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    tid = getattr(thread, "native_id", None)
    return tid if isinstance(tid, int) else -1


def find() -> Found | None:
    """The scheduler of this process: the main thread first, then the others (a Ray actor's loop may run anywhere).

    A loop that runs wins over a scheduler that is still being made, which is returned with an empty loop.
    """
    main = threading.main_thread().ident
    frames = sys._current_frames()
    starting: Found | None = None
    for ident in sorted(frames, key=lambda i: i != main):
        frame: FrameType | None = frames[ident]
        depth = 0
        while frame is not None and depth < MAX_DEPTH:
            name = frame.f_code.co_name
            if name.startswith("event_loop") or name in ("run_event_loop", "__init__", "run_scheduler_process"):
                obj = _self_of(frame)
                if obj is not None and versions.is_scheduler(obj):
                    loop = name if name.startswith("event_loop") else ""
                    found = Found(obj, loop, ident, _native_id(ident), frame.f_code)
                    if loop:
                        return found
                    starting = starting or found
            frame = frame.f_back
            depth += 1
    return starting


def loop_name(ident: int) -> str:
    """The name of the event loop that a thread runs now, or an empty string. Looks at no locals."""
    frame = sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_code.co_name.startswith("event_loop"):
            return frame.f_code.co_name
        frame = frame.f_back
    return ""


def where(ident: int, most: int = 12) -> list[str]:
    """The Python stack of a thread in words, innermost first: ``recv_requests (request_receiver.py:91)``."""
    frame = sys._current_frames().get(ident)
    lines: list[str] = []
    while frame is not None and len(lines) < most:
        code = frame.f_code
        if not code.co_filename.startswith(_HERE):
            lines.append(f"{code.co_name} ({code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno})")
        frame = frame.f_back
    return lines
