"""Forwards in a row: the time inside them (busy, as a union) and the gaps between them with their causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, split
from sgtop_core.model.causes import PATIENCE_NS, Sources
from sgtop_core.model.windows import TICK_NS


@dataclass(frozen=True, slots=True)
class Spans:
    """Forwards in the order of their starts. ``busy0`` to ``t1`` is the part that no forward before covers."""

    busy0: I64
    t1: I64
    gap: I64
    """ns before the forward since the end of all before it; -1 where that is not known."""


class Chain:
    """Turns forwards, given in portions, into busy spans and gaps."""

    def __init__(self) -> None:
        self._end: int | None = None

    def cut(self) -> None:
        """Forget the last forward: rows were lost, so the next gap is not known."""
        self._end = None

    def add(self, t0: I64, t1: I64) -> Spans:
        """Next forwards, sorted by ``t0`` (ns)."""
        if not len(t0):
            return Spans(EMPTY, EMPTY, EMPTY)
        first = int(t0[0]) if self._end is None else self._end
        ends = np.maximum.accumulate(np.concatenate([np.array([first], np.int64), t1]))
        before = ends[:-1]
        gap = np.maximum(t0 - before, 0)
        if self._end is None:
            gap[0] = -1
        self._end = int(ends[-1])
        return Spans(np.minimum(np.maximum(t0, before), t1), t1, gap)


@dataclass(frozen=True, slots=True)
class Split:
    """Pieces of gaps that were split just now; parallel arrays."""

    mode: I64
    cause: I64
    tick: I64
    """Number of the tick (t // TICK_NS) that the piece lies in."""
    ns: I64


_LONGEST = 620 * 10**9
"""ns of a gap that are split into causes, its latest; more than the longest window shows."""


class Gaps:
    """Gaps that wait for their causes."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._a: list[I64] = []
        self._b: list[I64] = []
        self._mode: list[I64] = []

    def add(self, a: I64, b: I64, mode: I64) -> None:
        """Gaps from ``a`` to ``b`` (ns), before a forward of ``mode`` (number)."""
        if len(a):
            self._a.append(a)
            self._b.append(b)
            self._mode.append(mode)

    def split(self, now: int) -> Split | None:
        """Split what can be split at ``now``; None where there is nothing."""
        if not self._a:
            return None
        a, b, mode = np.concatenate(self._a), np.concatenate(self._b), np.concatenate(self._mode)
        known = self._sources.known_until()
        ready = len(b)
        if known is not None:
            ready = int(np.searchsorted(np.maximum.accumulate(b), max(known, now - PATIENCE_NS), "right"))
        self._a, self._b, self._mode = ([x[ready:]] if ready < len(b) else [] for x in (a, b, mode))
        if not ready:
            return None
        a, b, mode = a[:ready], b[:ready], mode[:ready]
        which, tick, pa, pb = split(np.maximum(a, b - _LONGEST), b, TICK_NS)
        parts = self._sources.partition(pa, pb)
        return Split(mode[which][parts.which], parts.code, tick[parts.which], parts.ns)
