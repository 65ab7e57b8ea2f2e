"""Fixed bins for histograms from which quantiles are read: bounded memory, bounded error.

Durations: 60 bins a decade from 100 ns to 1,000 s. A quantile is the geometric middle of its bin, so it is at
most 10^(1/120) - 1 = 1.94 % off. Counts (batch sizes): exact below 256, the same 60 bins a decade above.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sgtop_core.model.arrays import F64, I64

PER_DECADE = 60
_LOG = PER_DECADE / np.log(10.0)


class Durations:
    """Bins for nanoseconds. Bin 0 holds everything under 100 ns, the last one everything from 1,000 s up."""

    low = 100.0
    size = 1 + 10 * PER_DECADE

    @classmethod
    def index(cls, ns: I64) -> I64:
        """Bin of each value."""
        x = np.log(np.maximum(ns, 1) / cls.low) * _LOG + 1.0
        i: I64 = np.minimum(np.maximum(x, 0), cls.size - 1).astype(np.int64)
        return i

    @classmethod
    def middles(cls) -> F64:
        """Representative value of each bin, ns."""
        i = np.arange(cls.size, dtype=np.float64)
        m = cls.low * 10.0 ** ((i - 0.5) / PER_DECADE)
        m[0] = cls.low / 2
        return m


class Counts:
    """Bins for small whole numbers such as a batch size."""

    exact = 256
    size = exact + 4 * PER_DECADE

    @classmethod
    def index(cls, n: I64) -> I64:
        """Bin of each value; negative values count as 0."""
        x = np.log(np.maximum(n, cls.exact) / cls.exact) * _LOG + cls.exact
        return np.where(n < cls.exact, np.maximum(n, 0), np.minimum(x, cls.size - 1)).astype(np.int64)

    @classmethod
    def middles(cls) -> F64:
        """Representative value of each bin."""
        i = np.arange(cls.size, dtype=np.float64)
        return np.where(i < cls.exact, i, np.round(cls.exact * 10.0 ** ((i - cls.exact + 0.5) / PER_DECADE)))


def quantiles(hist: npt.NDArray[np.int32] | I64, middles: F64, qs: tuple[float, ...]) -> tuple[float | None, ...]:
    """Quantiles of a histogram: the middle of the bin with the value of rank ceil(q n); None where it is empty."""
    c = np.cumsum(hist)
    n = int(c[-1])
    if n == 0:
        return (None,) * len(qs)
    rank = np.maximum(np.ceil(np.array(qs) * n), 1)
    return tuple(float(middles[i]) for i in np.searchsorted(c, rank))


COARSE_EDGES_NS: tuple[float, ...] = tuple(100.0 * 10.0 ** (k / 2) for k in range(2, 19))
"""Edges of the histograms on screen: two a decade, 1 µs to 100 s."""


def coarse(hist: npt.NDArray[np.int32] | I64) -> I64:
    """A Durations histogram in the bins of COARSE_EDGES_NS; what lies outside is in the first and the last."""
    half = PER_DECADE // 2
    starts = np.array([0, *(1 + half * k for k in range(3, 18))])
    out: I64 = np.add.reduceat(hist, starts).astype(np.int64)
    return out
