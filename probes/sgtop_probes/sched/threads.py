"""Which threads are watched: main threads of the watched processes, or all their threads; looked up each second."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .types import Watched

RESCAN_NS = 1_000_000_000


def threads_of(pid: int, proc: str = "/proc") -> list[int]:
    """Thread ids of a process, in sgtop's pid namespace; empty when it is gone."""
    try:
        return sorted(int(t) for t in os.listdir(f"{proc}/{pid}/task") if t.isdigit())
    except OSError:
        return []


class WatchList:
    """The current set of thread ids."""

    def __init__(self, watched: Sequence[Watched], every: bool, proc: str = "/proc") -> None:
        """``every``: all threads of the processes, not only the main ones."""
        self.watched = tuple(watched)
        self._every = every
        self._proc = proc
        self._next = 0
        self.tids: frozenset[int] = frozenset()
        self.rescan()

    def rescan(self) -> bool:
        """Look again; True when the set changed."""
        now: set[int] = set()
        for w in self.watched:
            alive = threads_of(w.pid, self._proc)
            if self._every:
                now.update(alive)
            elif w.tid in alive:
                now.add(w.tid)
        changed = now != self.tids
        self.tids = frozenset(now)
        return changed

    def due(self, now_ns: int) -> bool:
        """Rescan once a second; True when the set changed."""
        if now_ns < self._next:
            return False
        self._next = now_ns + RESCAN_NS
        return self.rescan()
