"""Idle time of the GPU between kernels, and the union of busy time.

A gap is ``max(end so far) → next start``, whatever streams they are on: time in which no kernel, copy or set of this
process ran. Not a stream at a time: SGLang's overlap scheduler launches a kernel or two a step on a second stream,
whose "gaps" summed up to 5.03 s of 5 s on an H200 that was 97 % busy. A gap belongs to the mode of what ends it.

Causes after HTA's idle-time breakdown, without API records: *host wait* if the GPU was idle already when the host began
to launch the forward that the next kernel belongs to, *kernel wait* if it is shorter than a threshold, else *other*.
From the threshold on ``why`` looks further.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, F64, I64, Bool
from sgtop_core.model.bins import Durations
from sgtop_core.model.causes import GC, NO_WORK, PAUSED, PREEMPTED, THROTTLED

THRESHOLD_NS = 5_000
CAUSES = ("host wait", "kernel wait", "other", PREEMPTED, THROTTLED, GC, NO_WORK, PAUSED)
HOST_WAIT, KERNEL_WAIT, OTHER = range(3)
ALWAYS = 3
"""The first causes are shown always, the others where they are above 0."""
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


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps from ``a`` to ``b`` (CLOCK_MONOTONIC ns); parallel arrays."""

    a: I64
    b: I64
    code: I64
    """Mode code."""
    cause: I64
    """Index into ``CAUSES``."""

    def __len__(self) -> int:
        return len(self.a)

    def only(self, keep: Bool) -> Gaps:
        """Some of them."""
        return Gaps(self.a[keep], self.b[keep], self.code[keep], self.cause[keep])


class GapFinder:
    """Finds gaps in blocks of kernels that come in order of time. One tracing session after another."""

    def __init__(self, threshold_ns: int = THRESHOLD_NS) -> None:
        self.threshold_ns = threshold_ns
        self._reach: int | None = None
        """End so far."""

    def restart(self) -> None:
        """A new tracing session: what ran before its first kernel was not seen."""
        self._reach = None

    def find(self, start: I64, end: I64, code: I64, host: I64) -> Gaps:
        """The gaps before what is given, ordered by ``start``."""
        if not len(start):
            return Gaps(EMPTY, EMPTY, EMPTY, EMPTY)
        reach = np.maximum.accumulate(end)
        before = np.empty_like(start)
        before[0] = start[0] if self._reach is None else self._reach
        before[1:] = reach[:-1]
        np.maximum.accumulate(before, out=before)
        self._reach = max(int(reach[-1]), int(before[0]))
        keep = start > before
        a, b = before[keep], start[keep]
        cause = np.where(host[keep] > a, HOST_WAIT, np.where(b - a < self.threshold_ns, KERNEL_WAIT, OTHER))
        return Gaps(a, b, code[keep], cause.astype(np.int64))


class RollingGaps:
    """Gap histograms by second."""

    def __init__(self) -> None:
        self._blocks: deque[GapBlock] = deque(maxlen=_KEEP)

    def add(self, second: int, gap: I64, code: I64, cause: I64) -> None:
        """Add a block's gaps (ns), each with one cause. Blocks of one second are merged."""
        if len(gap):
            self.split(second, gap, code, np.arange(len(gap)), cause, gap)

    def split(self, second: int, gap: I64, code: I64, which: I64, cause: I64, ns: I64) -> None:
        """Add gaps whose parts are ``ns`` of the gap ``which`` with a cause each; they sum to the gaps."""
        hist, causes, longest = {}, {}, {}
        of, weights = code[which], ns.astype(np.float64)
        for c in np.unique(code):
            g, mine = gap[code == c], of == c
            hist[int(c)] = np.bincount(Durations.index(g), minlength=Durations.size)
            causes[int(c)] = np.bincount(cause[mine], weights=weights[mine], minlength=len(CAUSES)).astype(np.float64)
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
