"""Likely culprits without kernel samples: threads that used the CPU on which a watched thread waited.

Levels C and D know that a thread waited, not for whom. A scan of /proc costs about 10 µs a thread, so it is made only
while somebody waits, processes first, and paced to a third of a percent of a core; the first ones come at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from .counters import TICKS_PER_S, stat
from .threads import threads_of
from .types import Suspect

SHARE = 0.003
"""Of a core, in the long run."""
BURST_S = 0.02
"""CPU time that is saved up for when waits begin."""
FIRST_SCANS = 2
"""So many come at once then, whatever they cost: it takes two to see who ran, and an answer is wanted soon."""
EVERY_S = 1.0
KEEP = 8
IDLE_SCANS = 2
"""Scans go on this often after the last wait, so that the next wait finds a base to compare with."""


class Suspects:
    """Remembers ticks of CPU between scans."""

    def __init__(self, skip: Collection[int] = (), proc: str = "/proc") -> None:
        """``skip``: processes that are never suspects (sgtop itself is skipped always)."""
        self._skip = {os.getpid(), *skip}
        self._proc = proc
        self._procs: dict[int, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._at = 0
        self._next = 0.0
        self._budget = BURST_S
        self._first = FIRST_SCANS
        self._filled = 0
        self._idle = 0
        self._cpus: set[int] = set()
        self.found: tuple[Suspect, ...] = ()

    def update(self, now: int, cpus: Collection[int], own: Collection[int]) -> tuple[Suspect, ...]:
        """Suspects now, most likely first.

        Args:
            now: ns.
            cpus: where watched threads waited since the last call.
            own: watched tids, never suspects.
        """
        self._idle = 0 if cpus else self._idle + 1
        self._cpus |= set(cpus)
        self._budget = min(BURST_S, self._budget + SHARE * (now - self._filled) / 1e9) if self._filled else BURST_S
        self._filled = now
        quiet = not cpus and self._idle > IDLE_SCANS
        if quiet:
            self.found = ()
            self._first = FIRST_SCANS
        if now / 1e9 < self._next or (self._budget <= 0 and not self._first) or (quiet and self._at):
            return self.found
        self._first = max(self._first - 1, 0)
        t = time.thread_time()
        self.found = self._scan(now, self._cpus, set(own))
        self._cpus = set()
        self._budget -= time.thread_time() - t
        self._next = now / 1e9 + EVERY_S
        return self.found

    def _scan(self, now: int, cpus: set[int], own: set[int]) -> tuple[Suspect, ...]:
        elapsed = max((now - self._at) / 1e9, 1e-3) if self._at else 0.0
        first, self._at = not self._at, now
        procs: dict[int, int] = {}
        threads: dict[tuple[int, int], int] = {}
        out: list[Suspect] = []
        try:
            names = os.listdir(self._proc)
        except OSError:
            return ()
        for name in names:
            if not name.isdigit() or int(name) in self._skip:
                continue
            pid = int(name)
            main = _process_ticks(pid, self._proc)
            if main is None:
                continue
            procs[pid] = main
            # Only threads of a process that ran are looked at: most of a host sleeps.
            if first or main == self._procs.get(pid, 0):
                continue
            for tid in threads_of(pid, self._proc):
                st = stat(pid, tid, self._proc)
                if st is None or tid in own:
                    continue
                comm, _state, ticks, cpu = st
                threads[(pid, tid)] = ticks
                before = self._threads.get((pid, tid), ticks if pid in self._procs else 0)
                if cpu in cpus and ticks > before:
                    out.append(Suspect(pid, tid, comm, cpu, min(1.0, (ticks - before) / TICKS_PER_S / elapsed)))
        self._procs = procs
        self._threads = {**{k: v for k, v in self._threads.items() if k[0] in procs}, **threads}
        out.sort(key=lambda s: -s.share)
        return tuple(out[:KEEP])


def _process_ticks(pid: int, proc: str) -> int | None:
    try:
        with open(f"{proc}/{pid}/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return None
