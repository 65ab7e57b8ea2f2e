"""What every level reads beside its events: counters of the watched main threads, quotas, suspects. And the batch."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence

from .cgroup import ThrottleReader
from .counters import ThreadReader
from .suspects import Suspects
from .types import Open, Rows, SchedBatch, Suspect, ThreadCounters, Throttle, Watched

COUNTERS_NS = 1_000_000_000
"""Counters of threads, where the events tell the story."""
THROTTLE_NS = 200_000_000
"""Counters of a quota: what waits were is decided by them."""


class Side:
    """Readings that need no permission."""

    def __init__(self, watched: Sequence[Watched], *, every_ns: int = COUNTERS_NS, suspects: bool = False) -> None:
        """``suspects``: look for likely culprits in /proc, because the events do not name them."""
        self._every = every_ns
        self._next = self._next_throttle = 0
        self._since = time.monotonic_ns()
        self._suspects = Suspects() if suspects else None
        self._threads: list[ThreadReader] = []
        self._throttle: dict[int, ThrottleReader] = {}
        self.watch(watched)

    def watch(self, watched: Sequence[Watched]) -> None:
        """Read these from now on."""
        self._threads = [ThreadReader(w.pid, w.tid) for w in watched]
        self._throttle = {w.pid: ThrottleReader(w.pid) for w in watched}
        self._next = self._next_throttle = 0

    def counters(self, now: int) -> tuple[ThreadCounters, ...]:
        """Counters when they are due, else nothing."""
        if now < self._next:
            return ()
        self._next = now + self._every
        return tuple(c for c in (r.read(now) for r in self._threads) if c is not None)

    def throttle(self, now: int) -> dict[int, Throttle]:
        """Quota counters by watched pid when they are due, else nothing."""
        if now < self._next_throttle:
            return {}
        limited = any(r.has_quota for r in self._throttle.values())
        self._next_throttle = now + (THROTTLE_NS if limited else COUNTERS_NS)
        out = {}
        for pid, reader in self._throttle.items():
            got = reader.read()
            if got is not None:
                out[pid] = got
        return out

    def suspects(self, now: int, cpus: Collection[int], own: Collection[int]) -> tuple[Suspect, ...]:
        """Likely culprits on these CPUs."""
        return self._suspects.update(now, cpus, own) if self._suspects is not None else ()

    def batch(
        self,
        level: str,
        begun: int,
        cpu_begun: int,
        rows: Rows,
        *,
        threads: tuple[ThreadCounters, ...] | None = None,
        opened: tuple[Open, ...] = (),
        suspects: tuple[Suspect, ...] = (),
        lost: int = 0,
        migrations: Mapping[int, int] | None = None,
        exact_cpus: tuple[int, ...] = (),
        host_pids: bool = False,
    ) -> SchedBatch:
        """The batch of a poll that began at ``begun``, with whatever counters are due."""
        counters = self.counters(begun) if threads is None else threads
        since, self._since = self._since, begun
        return SchedBatch(
            level=level,
            time=begun,
            since=since,
            **rows.columns(),
            comms=rows.comms(),
            open=opened,
            threads=counters,
            throttle=self.throttle(begun),
            suspects=suspects,
            lost=lost,
            migrations=dict(migrations or {}),
            exact_cpus=exact_cpus,
            host_pids=host_pids,
            cost_ns=time.thread_time_ns() - cpu_begun,
        )


def online_cpus(root: str = "/") -> list[int]:
    """CPUs that are on."""
    try:
        with open(os.path.join(root, "sys/devices/system/cpu/online")) as f:
            return parse_cpus(f.read())
    except (OSError, ValueError):
        return sorted(os.sched_getaffinity(0))


def parse_cpus(text: str) -> list[int]:
    """A kernel CPU list such as ``0-3,8``.

    Raises:
        ValueError: it is none.
    """
    out: list[int] = []
    for part in text.strip().split(","):
        if part:
            a, _, b = part.partition("-")
            out += range(int(a), int(b or a) + 1)
    return out
