"""Trouble on demand inside a scheduler, to see whether sgtop finds it: an SGLang plugin for tests.

With this folder on the server's PYTHONPATH and ``SGTOP_SABOTEUR=FILE`` in its environment, each turn of the
scheduler's loop reads one word from FILE, where it exists: ``gc`` collects garbage among many objects, ``sleep``
waits 20 ms for nothing. Both happen in ``get_next_batch_to_run``, before the batch is chosen.
"""

from __future__ import annotations

import gc
import os
import time
from typing import Any

OBJECTS = 600_000
SLEEP_S = 0.02
EVERY = 10
"""Turns from one trouble to the next."""


def load() -> None:
    """Called by SGLang in every process that loads plugins."""
    path = os.environ.get("SGTOP_SABOTEUR")
    if not path:
        return
    from sglang.srt.managers.scheduler import Scheduler

    original = Scheduler.get_next_batch_to_run
    hoard: list[Any] = []
    turns = 0

    def troubled(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal turns
        turns += 1
        if turns % EVERY == 0 and os.path.exists(path):
            with open(path) as f:
                word = f.read().strip()
            if word == "gc":
                if not hoard:
                    hoard.extend([i] for i in range(OBJECTS))
                gc.collect()
            elif word == "sleep":
                time.sleep(SLEEP_S)
        return original(self, *args, **kwargs)

    Scheduler.get_next_batch_to_run = troubled
