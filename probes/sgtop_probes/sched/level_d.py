"""Level D: /proc and cgroup files only. Needs nothing; works in any container.

How long the watched threads waited for a CPU in each slice between two polls (schedstat), how often they were
preempted (status), quotas, and likely culprits. When exactly within the slice is not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .counters import ProcFile, parse_schedstat
from .side import Side
from .threads import WatchList
from .types import SPREAD, UNKNOWN, Needs, Rows, SchedBatch, ThreadCounters, Watched

_COUNTERS_NS = 200_000_000
_NOISE_NS = 20_000
"""Waits this short in a slice are the cost of waking up, and no row."""


class LevelD:
    """As ``types.SchedSource``."""

    level = "D"

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        every_thread: bool = False,
        needs: Needs | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Nothing is opened, nothing can fail: what cannot be read is missing in the batches."""
        self._clock = clock
        self.needs = needs
        self.lost = 0
        self._list = WatchList(watched, every_thread)
        self._pids: dict[int, int] = {}
        self._waits: dict[int, tuple[int, int]] = {}
        self._cpus: dict[int, int] = {}
        self._files: dict[int, ProcFile] = {}
        self._side = Side(watched, suspects=True, every_ns=_COUNTERS_NS)
        self._map()

    def _map(self) -> None:
        self._pids = {w.tid: w.pid for w in self._list.watched}
        self._waits = {t: v for t, v in self._waits.items() if t in self._list.tids}
        self._files = {
            t: self._files.get(t) or ProcFile(f"/proc/{self._pids.get(t, t)}/task/{t}/schedstat")
            for t in self._list.tids
        }

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these from now on."""
        self._list.watched = tuple(watched)
        self._side.watch(watched)
        self._list.rescan()
        self._map()

    def wait(self, timeout_s: float) -> None:
        """There is no ring: just the time."""
        time.sleep(timeout_s)

    def poll(self) -> SchedBatch:
        """As ``types.SchedSource``."""
        cpu_begun, begun = time.thread_time_ns(), self._clock()
        if self._list.due(begun):
            self._map()
        threads: tuple[ThreadCounters, ...] = self._side.counters(begun)
        for c in threads:
            if c.cpu is not None:
                self._cpus[c.tid] = c.cpu
        rows, cpus = Rows(), set[int]()
        for tid in self._list.tids:
            got = parse_schedstat(self._files[tid].read())
            if got is None:
                self._waits.pop(tid, None)
                continue
            now = self._clock()
            before = self._waits.get(tid)
            self._waits[tid] = (now, got[1])
            if before is None:
                continue
            waited = got[1] - before[1]
            if waited > _NOISE_NS:
                cpu = self._cpus.get(tid, -1)
                # The kernel adds a wait when it ends: one longer than the slice reaches back before it.
                rows.add(min(before[0], now - waited), now, tid, SPREAD, UNKNOWN, "", cpu, waited)
                cpus.add(cpu)
        return self._side.batch(
            self.level,
            begun,
            cpu_begun,
            rows,
            threads=threads,
            suspects=self._side.suspects(begun, cpus, self._list.tids),
        )

    def close(self) -> None:
        """Nothing to give back."""
