"""Running a function on the scheduler's main thread between two steps.

What may not run beside a step (an enable call of CUPTI, a switch of the graph runner) is queued by the agent's
thread with ``at_step`` and run by the main thread at its next entry to ``get_next_batch_to_run``. The main
thread pays one truth test of an empty deque a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MAX_QUEUED = 64


class Boundary:
    """The queue. ``pending`` is read by the hook; only the main thread takes from it."""

    def __init__(self) -> None:
        self.pending: deque[Callable[[], None]] = deque()
        self.errors: deque[str] = deque(maxlen=16)

    def at_step(self, fn: Callable[[], None]) -> bool:
        """Queue ``fn`` for the next step boundary; any thread. False: the queue is full, nothing was queued.

        The caller sets its own time limit and makes ``fn`` do nothing when it is late: a scheduler that hangs
        must not run it minutes afterwards. ``fn`` must be short; what it raises is kept, not raised.
        """
        if len(self.pending) >= MAX_QUEUED:
            return False
        self.pending.append(fn)
        return True

    def drain(self) -> None:
        """Main thread: run what is queued now (not what that queues)."""
        for _ in range(len(self.pending)):
            try:
                fn = self.pending.popleft()
            except IndexError:
                return
            try:
                fn()
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:300])
