"""Kernel statistics by forward mode over rolling windows: nsys' ``cuda_gpu_kern_sum``, one table a mode.

A block of kernels is added up into the second in which it ended; a view merges seconds. Seconds older than
``FINE_S`` are merged into tens, and all are dropped after ``KEEP_S``: memory is bounded by the number of different
(mode, kernel) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from sgtop_core.model.arrays import F64, I64
from sgtop_core.model.bins import Durations

FINE_S, COARSE_S, KEEP_S = 70, 10, 660
_SHIFT = 20
MAX_KERNELS = (1 << _SHIFT) - 1
_BIN = 10  # bits of a duration bin


@dataclass(frozen=True, slots=True)
class Stats:
    """Sums of groups; all arrays have the same length and are ordered by ``key``."""

    key: I64
    """mode code << 20 | kernel number."""
    count: I64
    total: I64
    """ns"""
    square: F64
    """Sum of squared durations, ns²."""
    low: I64
    high: I64
    graph: I64
    """Of ``count``, nodes of a CUDA graph."""
    bytes: I64
    bins: I64
    """group's key << 10 | duration bin, ordered; a sparse histogram."""
    bin_count: I64

    @property
    def code(self) -> I64:
        """Mode code of each group."""
        return self.key >> _SHIFT

    @property
    def kernel(self) -> I64:
        """Kernel number of each group."""
        return self.key & MAX_KERNELS


def _empty() -> Stats:
    z = np.zeros(0, np.int64)
    return Stats(z, z, z, np.zeros(0), z, z, z, z, z, z)


def summarise(code: I64, kernel: I64, duration: I64, graph: I64, nbytes: I64) -> Stats:
    """Statistics of one block of kernels."""
    if not len(code):
        return _empty()
    width = int(kernel.max()) + 1
    dense = code * width + kernel
    size = int(dense.max()) + 1
    count = np.bincount(dense, minlength=size)
    groups = np.flatnonzero(count)
    d = duration.astype(np.float64)
    low = np.full(size, np.iinfo(np.int64).max)
    high = np.zeros(size, np.int64)
    np.minimum.at(low, dense, duration)
    np.maximum.at(high, dense, duration)
    key = (groups // width) << _SHIFT | groups % width
    # Groups are numbered in order, so that the sparse histogram comes out ordered by key.
    rank = np.zeros(size, np.int64)
    rank[groups] = np.arange(len(groups))
    cell = rank[dense] * Durations.size + Durations.index(duration)
    cells = np.bincount(cell, minlength=0)
    full = np.flatnonzero(cells)
    return Stats(
        key,
        count[groups],
        np.bincount(dense, weights=d, minlength=size)[groups].astype(np.int64),
        np.bincount(dense, weights=d * d, minlength=size)[groups].astype(np.float64),
        low[groups],
        high[groups],
        np.bincount(dense, weights=(graph != 0).astype(np.float64), minlength=size)[groups].astype(np.int64),
        np.bincount(dense, weights=nbytes.astype(np.float64), minlength=size)[groups].astype(np.int64),
        key[full // Durations.size] << _BIN | full % Durations.size,
        cells[full],
    )


def _groups(keys: I64) -> tuple[I64, I64, I64]:
    """(distinct keys, order that sorts them, where each group starts in it)."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], order, first


def merge(parts: list[Stats]) -> Stats:
    """Statistics of several blocks together."""
    parts = [p for p in parts if len(p.key)]
    if len(parts) <= 1:
        return parts[0] if parts else _empty()
    names = (f.name for f in fields(Stats))
    return _regroup(Stats(*(np.concatenate([getattr(p, name) for p in parts]) for name in names)))


def renumber(s: Stats, numbers: I64) -> Stats:
    """``s`` with kernel number ``numbers[k]`` for each ``k``; those that get the same one become one group."""
    key = s.code << _SHIFT | numbers[s.kernel]
    owner = s.bins >> _BIN
    bins = (owner >> _SHIFT << _SHIFT | numbers[owner & MAX_KERNELS]) << _BIN | s.bins & ((1 << _BIN) - 1)
    return _regroup(replace(s, key=key, bins=bins))


def _regroup(s: Stats) -> Stats:
    """Groups that come in any order, and several times, in order and once."""
    if not len(s.key):
        return s
    key, order, first = _groups(s.key)
    bins, bin_order, bin_first = _groups(s.bins)
    squares: F64 = s.square[order]
    return Stats(
        key,
        np.add.reduceat(s.count[order], first),
        np.add.reduceat(s.total[order], first),
        np.add.reduceat(squares, first),
        np.minimum.reduceat(s.low[order], first),
        np.maximum.reduceat(s.high[order], first),
        np.add.reduceat(s.graph[order], first),
        np.add.reduceat(s.bytes[order], first),
        bins,
        np.add.reduceat(s.bin_count[bin_order], bin_first),
    )


def medians(s: Stats) -> F64:
    """Median duration of each group, ns: the middle of its bin."""
    if not len(s.key):
        return np.zeros(0)
    owner = np.searchsorted(s.key, s.bins >> _BIN)
    seen = np.cumsum(s.bin_count)
    before = np.concatenate(([0], seen))[np.searchsorted(owner, np.arange(len(s.key)))]
    at = np.searchsorted(seen, before + (s.count + 1) // 2)
    middle = Durations.middles()[s.bins[at] & ((1 << _BIN) - 1)]
    clipped: F64 = np.clip(middle, s.low, s.high)
    return clipped


def deviations(s: Stats) -> F64:
    """Sample standard deviation of each group, ns; NaN for a single instance."""
    n = s.count.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = (s.square - s.total.astype(np.float64) ** 2 / n) / (n - 1)
    return np.where(n > 1, np.sqrt(np.maximum(variance, 0)), np.nan)


class Rolling:
    """Statistics by second, merged on demand."""

    def __init__(self) -> None:
        self._bins: dict[int, tuple[int, list[Stats]]] = {}
        """Start second → (length in seconds, blocks)."""

    def add(self, second: int, stats: Stats) -> None:
        """Add a block that ended in ``second`` (CLOCK_MONOTONIC)."""
        length, blocks = self._bins.setdefault(second, (1, []))
        blocks.append(stats)
        if len(blocks) >= 8:
            self._bins[second] = (length, [merge(blocks)])
        if len(blocks) == 1:
            self._age(second)

    def _age(self, now: int) -> None:
        old = sorted(s for s, (length, _) in self._bins.items() if length == 1 and s < now - FINE_S)
        tens: dict[int, list[Stats]] = {}
        for s in old:
            tens.setdefault(s // COARSE_S * COARSE_S, []).extend(self._bins.pop(s)[1])
        for s, blocks in tens.items():
            _, have = self._bins.get(s, (COARSE_S, []))
            self._bins[s] = (COARSE_S, [merge([*have, *blocks])])
        for s in [s for s in self._bins if s < now - KEEP_S]:
            del self._bins[s]

    @property
    def newest(self) -> int | None:
        """The youngest second that has data."""
        return max(self._bins, default=None)

    def since(self, second: int) -> Stats:
        """Everything from ``second`` on; of a coarse bin that reaches into the window, all."""
        return merge([b for s, (length, blocks) in self._bins.items() if s + length > second for b in blocks])
