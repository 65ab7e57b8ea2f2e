"""Which waits a cgroup's quota caused.

A thread that its quota holds back looks like a preempted one: it wants to run, and its CPU runs somebody else or
nothing. The kernel's counters say how often and how long the cgroup was held back; so many of the waits that ended
meanwhile, the most likely ones first, are put down to it, and no more than the counters cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgtop_probes.sched.types import IDLE, Throttle

SHORT_NS = 1_000_000
"""A wait shorter than this, for somebody who ran, is an ordinary preemption."""
IDLE_NS = 100_000
"""A CPU that stays idle this long although somebody wants it: nobody but the quota does that."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One whole off-CPU interval of a runnable thread, with the rows that it consists of."""

    t0: int
    t1: int
    idle_ns: int
    """Part of it in which the CPU ran nothing."""
    parts: tuple[tuple[int, int, int, str], ...]
    """(t0, t1, who, name)"""

    @property
    def ns(self) -> int:
        """Its length."""
        return self.t1 - self.t0


def wait_of(parts: Sequence[tuple[int, int, int, str]]) -> Wait:
    """A Wait from its rows, in their order."""
    return Wait(parts[0][0], parts[-1][1], sum(b - a for a, b, who, _ in parts if who == IDLE), tuple(parts))


def share_out(waits: Sequence[Wait], periods: int, budget_ns: int) -> tuple[list[Wait], list[Wait], int]:
    """(held back by the quota, not, budget that is left).

    Args:
        waits: those that ended since the counters before.
        periods: periods in which the cgroup was throttled meanwhile.
        budget_ns: time that it was throttled, all CPUs together.
    """
    order = sorted(range(len(waits)), key=lambda i: (-waits[i].idle_ns, -waits[i].ns))
    held: set[int] = set()
    for i in order:
        w = waits[i]
        if len(held) > periods or budget_ns <= 0:
            break
        if w.idle_ns >= IDLE_NS or w.ns >= SHORT_NS:
            held.add(i)
            budget_ns -= w.ns
    return (
        [w for i, w in enumerate(waits) if i in held],
        [w for i, w in enumerate(waits) if i not in held],
        max(budget_ns, 0),
    )


class Counters:
    """A quota's counters between two batches."""

    KEEP_NS = 1_000_000_000
    """A wait ends a moment before or after the counters show it: what is left of the budget holds this long."""

    def __init__(self) -> None:
        self._last: Throttle | None = None
        self._until = 0
        self.budget_ns = 0
        self.periods = 0

    @property
    def has_quota(self) -> bool:
        """Whether waits must wait for counters before it is known what they were."""
        return self._last is not None and self._last.quota_cpus is not None

    @property
    def last(self) -> Throttle | None:
        """The latest counters."""
        return self._last

    def update(self, now: int, t: Throttle) -> int:
        """New counters; how many periods were throttled since those before."""
        before, self._last = self._last, t
        if now > self._until:
            self.budget_ns = self.periods = 0
        if before is None or before.path != t.path or t.nr_throttled < before.nr_throttled:
            return 0
        ns, periods = max(t.throttled_ns - before.throttled_ns, 0), t.nr_throttled - before.nr_throttled
        if ns or periods:
            self.budget_ns += ns
            self.periods += periods
            self._until = now + self.KEEP_NS
        return periods
