"""Idle time between kernels, and the union of busy time.

A gap is ``max(end so far) → next start`` on one stream: kernels of a stream may overlap by design (programmatic
dependent launch), then there is none. It belongs to the mode of the kernel that ends it. Causes after HTA's idle-time
breakdown, without API records: *host wait* if the stream was idle already when the host began to launch the forward
that the next kernel belongs to, *kernel wait* if it is shorter than a threshold, else *other*.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, F64, I64
from sgtop_core.model.bins import Durations

THRESHOLD_NS = 5_000
CAUSES = ("host wait", "kernel wait", "other")
_KEEP = 12_000

GAP_EDGES_NS: tuple[float, ...] = tuple(100.0 * 10.0 ** (k / 4) for k in range(33))
"""Four a decade, 100 ns to 10 s."""
_QUARTER = 15  # Durations has 60 bins a decade
_STARTS = np.array([0, *(1 + _QUARTER * k for k in range(1, 32))])


def gap_histogram(hist: I64) -> I64:
    """A ``Durations`` histogram in the bins of ``GAP_EDGES_NS``; what lies outside is in the first and the last."""
    out: I64 = np.add.reduceat(hist, _STARTS).astype(np.int64)
    return out


@dataclass(frozen=True, slots=True)
class GapBlock:
    """Gaps of one block of kernels."""

    second: int
    hist: dict[int, I64]
    """Mode code → ``Durations`` histogram."""
    causes: dict[int, F64]
    """Mode code → ns by ``CAUSES``."""
    longest: dict[int, int]


class GapFinder:
    """Finds gaps in blocks of kernels that come in order of time. One tracing session after another."""

    def __init__(self, threshold_ns: int = THRESHOLD_NS) -> None:
        self.threshold_ns = threshold_ns
        self._reach: dict[int, int] = {}
        """Stream → end so far."""

    def restart(self) -> None:
        """A new tracing session: what ran before its first kernel was not seen."""
        self._reach.clear()

    def find(self, start: I64, end: I64, stream: I64, code: I64, host: I64) -> tuple[I64, I64, I64]:
        """(gap in ns, mode code, cause index) of each gap, for kernels ordered by ``start``."""
        gaps, codes, causes = [], [], []
        for s in np.unique(stream):
            mine = np.flatnonzero(stream == s) if len(start) else EMPTY
            a, b = start[mine], end[mine]
            reach = np.maximum.accumulate(b)
            before = np.empty_like(a)
            before[1:] = reach[:-1]
            before[0] = self._reach.get(int(s), a[0])
            np.maximum.accumulate(before, out=before)
            self._reach[int(s)] = max(int(reach[-1]), self._reach.get(int(s), 0))
            gap = a - before
            keep = gap > 0
            if not keep.any():
                continue
            g, h, idle_from = gap[keep], host[mine][keep], before[keep]
            cause = np.where(h > idle_from, 0, np.where(g < self.threshold_ns, 1, 2))
            gaps.append(g)
            codes.append(code[mine][keep])
            causes.append(cause)
        if not gaps:
            return EMPTY, EMPTY, EMPTY
        return np.concatenate(gaps), np.concatenate(codes), np.concatenate(causes).astype(np.int64)


class RollingGaps:
    """Gap histograms by second."""

    def __init__(self) -> None:
        self._blocks: deque[GapBlock] = deque(maxlen=_KEEP)

    def add(self, second: int, gap: I64, code: I64, cause: I64) -> None:
        """Add a block's gaps. Blocks of one second are merged."""
        if not len(gap):
            return
        hist, causes, longest = {}, {}, {}
        for c in np.unique(code):
            mine = code == c
            g = gap[mine]
            hist[int(c)] = np.bincount(Durations.index(g), minlength=Durations.size)
            causes[int(c)] = np.bincount(cause[mine], weights=g.astype(np.float64), minlength=len(CAUSES)).astype(
                np.float64
            )
            longest[int(c)] = int(g.max())
        block = GapBlock(second, hist, causes, longest)
        if self._blocks and self._blocks[-1].second == second:
            block = _merge(self._blocks.pop(), block)
        self._blocks.append(block)
        while self._blocks[0].second < second - 660:
            self._blocks.popleft()

    def since(self, second: int) -> GapBlock:
        """All gaps from ``second`` on."""
        out = GapBlock(second, {}, {}, {})
        for block in self._blocks:
            if block.second >= second:
                out = _merge(out, block)
        return out


def _merge(a: GapBlock, b: GapBlock) -> GapBlock:
    codes = a.hist.keys() | b.hist.keys()
    zero, none = np.zeros(Durations.size, np.int64), np.zeros(len(CAUSES))
    return GapBlock(
        b.second,
        {c: a.hist.get(c, zero) + b.hist.get(c, zero) for c in codes},
        {c: a.causes.get(c, none) + b.causes.get(c, none) for c in codes},
        {c: max(a.longest.get(c, 0), b.longest.get(c, 0)) for c in codes},
    )
