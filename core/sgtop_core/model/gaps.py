"""Forwards in a row: the time inside them (busy, as a union) and the gaps between them with their causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, split
from sgtop_core.model.axis import MAX_RANKS, before, firsts, lasts, shifted
from sgtop_core.model.causes import PATIENCE_NS, AllSources
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
        self._end = np.full(MAX_RANKS, -1, np.int64)

    def cut(self, rank: I64 | int) -> None:
        """Forget the last forward of a rank: rows were lost, so its next gap is not known."""
        self._end[rank] = -1

    def end(self, rank: int) -> int:
        """Latest end of a forward of a rank, ns; -1 where that is not known."""
        return int(self._end[rank])

    def add(self, rank: I64, t0: I64, t1: I64) -> Spans:
        """Next forwards, rank after rank, in the order of ``t0`` (ns) within a rank."""
        if not len(t0):
            return Spans(EMPTY, EMPTY, EMPTY)
        first = firsts(rank)
        owner = rank[first]
        carry = np.where(self._end[owner] >= 0, self._end[owner], t0[first])
        ends = shifted(t1, rank)
        ends[first] = np.maximum(ends[first], shifted(carry, owner))
        ends = np.maximum.accumulate(ends) - shifted(np.zeros_like(rank), rank)
        previous = before(ends, first, carry)
        gap = np.maximum(t0 - previous, 0)
        gap[first[self._end[owner] < 0]] = -1
        self._end[owner] = ends[lasts(rank, first)]
        return Spans(np.minimum(np.maximum(t0, previous), t1), t1, gap)


@dataclass(frozen=True, slots=True)
class Split:
    """Pieces of gaps that were split just now; parallel arrays."""

    rank: I64
    mode: I64
    cause: I64
    tick: I64
    """Number of the tick (t // TICK_NS) that the piece lies in."""
    ns: I64


_LONGEST = 620 * 10**9
"""ns of a gap that are split into causes, its latest; more than the longest window shows."""


class Gaps:
    """Gaps that wait for their causes."""

    def __init__(self, sources: AllSources) -> None:
        self._sources = sources
        self._held: list[tuple[I64, I64, I64, I64]] = []
        """(rank, start, end, mode)"""

    def add(self, rank: I64, a: I64, b: I64, mode: I64) -> None:
        """Gaps from ``a`` to ``b`` (ns), before a forward of ``mode`` (number)."""
        if len(a):
            self._held.append((rank, a, b, mode))

    def clear(self, rank: int) -> None:
        """Forget a rank."""
        self._held = [tuple(x[h[0] != rank] for x in h) for h in self._held]

    def split(self, now: int) -> Split | None:
        """Split what can be split at ``now``; None where there is nothing."""
        if not self._held:
            return None
        rank, a, b, mode = (np.concatenate([h[k] for h in self._held]) for k in range(4))
        self._held.clear()
        ready = b <= np.maximum(self._sources.known_until(), now - PATIENCE_NS)[rank]
        if not ready.all():
            self._held.append((rank[~ready], a[~ready], b[~ready], mode[~ready]))
            rank, a, b, mode = rank[ready], a[ready], b[ready], mode[ready]
        if not len(rank):
            return None
        which, tick, pa, pb = split(np.maximum(a, b - _LONGEST), b, TICK_NS)
        parts = self._sources.partition(rank[which], pa, pb)
        of = which[parts.which]
        return Split(rank[of], mode[of], parts.code, tick[parts.which], parts.ns)
