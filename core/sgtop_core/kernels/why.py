"""Why the GPU was idle: gaps from the threshold on, split by what was done to the scheduler's main thread meanwhile.

What takes the main thread off its CPU (preempted, throttled, a collection) or leaves it without work is a cause of its
own; the rest of a gap keeps the cause that the kernels themselves show. Those who know of the main thread report a
little later, so gaps are held until all have, at most ``PATIENCE_NS``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64
from sgtop_core.model.causes import PATIENCE_NS, Names, Parts

from .gaps import ALWAYS, CAUSES, Gaps, RollingGaps

MAX_HELD = 200_000
"""Gaps; beyond it they are counted as they are."""


class Why(Protocol):
    """What is known of the main thread; ``model.causes.Sources`` is one."""

    names: Names

    def known_until(self) -> int:
        """Ns up to which all have reported."""

    def partition(self, a: I64, b: I64) -> Parts:
        """Every nanosecond of the intervals with one cause."""


class LongGaps:
    """Holds gaps until their cause is known, and counts them."""

    def __init__(self, into: RollingGaps) -> None:
        self._into = into
        self._held = Gaps(EMPTY, EMPTY, EMPTY, EMPTY)

    @property
    def waiting(self) -> bool:
        """Whether gaps are held."""
        return len(self._held) > 0

    def add(self, gaps: Gaps) -> None:
        """Gaps that are worth a look."""
        h = self._held
        pairs = ((h.a, gaps.a), (h.b, gaps.b), (h.code, gaps.code), (h.cause, gaps.cause))
        self._held = Gaps(*(np.concatenate(each) for each in pairs))

    def count(self, why: Why | None, now: int) -> None:
        """Count what can be counted at ``now``; everything at once where nobody knows of the main thread."""
        held = self._held
        if not len(held):
            return
        ready = np.ones(len(held), np.bool_)
        if why is not None and len(held) <= MAX_HELD:
            ready = held.b <= max(why.known_until(), now - PATIENCE_NS)
        if not ready.any():
            return
        self._held, gaps = held.only(~ready), held.only(ready)
        seconds = gaps.b // 1_000_000_000
        for second in np.unique(seconds):
            self._one(int(second), gaps.only(seconds == second), why)

    def _one(self, second: int, gaps: Gaps, why: Why | None) -> None:
        length = gaps.b - gaps.a
        if why is None:
            self._into.add(second, length, gaps.code, gaps.cause)
            return
        parts = why.partition(gaps.a, gaps.b)
        own = {name: i for i, name in enumerate(CAUSES) if i >= ALWAYS}
        told = np.array([own.get(name, -1) for name in why.names.names], np.int64)[parts.code]
        cause = np.where(told >= 0, told, gaps.cause[parts.which])
        self._into.split(second, length, gaps.code, parts.which, cause, parts.ns)
