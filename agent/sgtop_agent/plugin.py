"""SGLang's plugin entry point (group ``sglang.srt.plugins``): arms the agent in scheduler processes, and only there.

SGLang 0.5.12 and later call it. Newer ones call it in the main process, the detokenizer and the data-parallel
controller too, so it looks at who calls: schedulers load their plugins first thing in ``run_scheduler_process``.
"""

from __future__ import annotations

import sys
from types import FrameType

_armed: list[int] = []


def load() -> None:
    """Entry point. Never raises; does nothing where the process is no scheduler, or is armed already."""
    try:
        import os

        if in_scheduler(sys._getframe(1)) and os.getpid() not in _armed:
            _armed.append(os.getpid())
            from . import arm

            arm.arm("plugin")
    except Exception:
        import logging

        logging.getLogger("sgtop").warning("sgtop: the plugin did not load", exc_info=True)


def in_scheduler(frame: FrameType | None) -> bool:
    """Whether one of the callers is a scheduler process's main function."""
    while frame is not None:
        if frame.f_code.co_name.startswith("run_scheduler_process"):
            return True
        frame = frame.f_back
    return False
