"""Histograms in rolling windows: counts, totals, maxima and quantiles by rank and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np

from sgtop_core.model.arrays import F64, I32, I64
from sgtop_core.model.bins import Counts, Durations
from sgtop_core.model.windows import WINDOWS, K, Keys, Ring


@dataclass(frozen=True, slots=True)
class Summary:
    """What a window knows of one row, in the row's own unit (ns or a count)."""

    count: int
    total: int
    max: int
    p50: float
    p99: float


class HistBank(Generic[K]):
    """Histograms, counts, totals and maxima by rank and key, in every window.

    Values belong to the tick in which they were committed; ``add`` collects, ``commit`` moves the windows.
    """

    def __init__(self, bins: type[Durations] | type[Counts]) -> None:
        self._keys: Keys[tuple[int, K]] = Keys()
        self.bins = bins
        self.middles: F64 = bins.middles()
        self._rings = [Ring(w) for w in WINDOWS]
        self._k: list[I64] = []
        self._v: list[I64] = []
        self._hist: list[I32] = [np.zeros((8, w.slots, bins.size), np.int32) for w in WINDOWS]
        self._window: list[I32] = [np.zeros((8, bins.size), np.int32) for _ in WINDOWS]
        self._sum: list[I64] = [np.zeros((8, w.slots), np.int64) for w in WINDOWS]
        self._max: list[I64] = [np.zeros((8, w.slots), np.int64) for w in WINDOWS]
        self._medians: list[F64] = [np.full((8, w.slots), np.nan) for w in WINDOWS]
        self._traced: list[int] = []
        self._owed: tuple[I32, I64, I64] | None = None
        """What the windows from the second on have not got yet: histograms, totals, maxima."""
        self._read: dict[int, dict[int, dict[K, Summary]]] = {}
        """Window → rank → key → summary, as read since the last commit."""

    def row(self, rank: int, key: K, trace: bool = False) -> int:
        """Row number of ``key``, for ``add``. ``trace``: keep the median of every slot, for ``medians``."""
        known = len(self._keys.rows)
        r = self._keys.row((rank, key))
        if r >= len(self._window[0]):
            for arrays in (self._hist, self._window, self._sum, self._max):
                arrays[:] = [np.concatenate([x, np.zeros_like(x)]) for x in arrays]
            self._medians = [np.concatenate([x, np.full_like(x, np.nan)]) for x in self._medians]
        if trace and r >= known:
            self._traced.append(r)
        return r

    def add(self, rows: I64, values: I64) -> None:
        """Collect values; ``rows`` as given by ``row``."""
        if len(values):
            self._k.append(rows)
            self._v.append(values)

    def clear(self, rank: int) -> None:
        """Forget everything of a rank."""
        self._settle()
        self._read.clear()
        rows = [r for (owner, _), r in self._keys.rows.items() if owner == rank]
        for arrays in (self._hist, self._window, self._sum, self._max):
            for x in arrays:
                x[rows] = 0
        for medians in self._medians:
            medians[rows] = np.nan

    def commit(self, end: int) -> None:
        """Move every window to ``end`` and add what was collected to its last slot."""
        n = len(self._keys.rows)
        self._read.clear()
        if (end - 1) // WINDOWS[1].slot_ns > self._rings[1].head:
            self._settle()
        for i, ring in enumerate(self._rings):
            old = ring.forward(end)
            if old is not None:
                hist = self._hist[i]
                for slot in old.tolist():
                    self._window[i][:n] -= hist[:n, slot]
                    hist[:n, slot] = 0
                self._sum[i][:, old] = 0
                self._max[i][:, old] = 0
                self._medians[i][:, old] = np.nan
        if not self._k:
            return
        k, v = np.concatenate(self._k), np.concatenate(self._v)
        self._k.clear()
        self._v.clear()
        size = self.bins.size
        delta = np.bincount(k * size + self.bins.index(v), minlength=n * size).reshape(n, size).astype(np.int32)
        total = np.zeros(n, np.int64)
        np.add.at(total, k, v)
        top = np.zeros(n, np.int64)
        np.maximum.at(top, k, v)
        self._put(0, delta, total, top)
        # the longer windows get several ticks at once, when their slot ends or somebody reads them
        if self._owed is None or len(self._owed[1]) < n:
            self._settle()
            self._owed = (delta, total, top)
        else:
            self._owed[0][:] += delta
            self._owed[1][:] += total
            np.maximum(self._owed[2], top, out=self._owed[2])

    def _put(self, i: int, delta: I32, total: I64, top: I64) -> None:
        n, s = len(total), self._rings[i].slot
        self._hist[i][:n, s] += delta
        self._window[i][:n] += delta
        self._sum[i][:n, s] += total
        np.maximum(self._max[i][:n, s], top, out=self._max[i][:n, s])
        if self._traced:
            self._medians[i][self._traced, s] = self._median(self._hist[i][self._traced, s])

    def _settle(self) -> None:
        if self._owed is not None:
            for i in range(1, len(WINDOWS)):
                self._put(i, *self._owed)
            self._owed = None

    def _median(self, hist: I32) -> F64:
        c = np.cumsum(hist, axis=1)
        n = c[:, -1:]
        at = np.argmax(c >= (n + 1) // 2, axis=1)
        return np.where(n[:, 0] > 0, self.middles[at], np.nan)

    def read(self, level: int, rank: int) -> dict[K, Summary]:
        """The window ``level`` of a rank by key; keys that it holds nothing of are left out."""
        if level not in self._read:
            if level:
                self._settle()
            self._read[level] = self._summaries(level)
        return self._read[level].get(rank, {})

    def _summaries(self, level: int) -> dict[int, dict[K, Summary]]:
        n = len(self._keys.rows)
        out: dict[int, dict[K, Summary]] = {}
        if n == 0:
            return out
        c = np.cumsum(self._window[level][:n], axis=1)
        count = c[:, -1]
        p50, p99 = (
            self.middles[np.argmax(c >= np.maximum(np.ceil(q * count), 1)[:, None], axis=1)] for q in (0.5, 0.99)
        )
        top = self._max[level][:n].max(axis=1)
        rows = zip(
            self._keys.rows,
            count.tolist(),
            self._sum[level][:n].sum(axis=1).tolist(),
            top.tolist(),
            np.minimum(p50, top).tolist(),
            np.minimum(p99, top).tolist(),
            strict=True,
        )
        for (rank, key), k, total, m, a, b in rows:
            if k:
                out.setdefault(rank, {})[key] = Summary(k, total, m, a, b)
        return out

    def has(self, rank: int, key: K) -> bool:
        """Whether ``key`` was ever used."""
        return (rank, key) in self._keys.rows

    def histogram(self, level: int, rank: int, key: K) -> I32:
        """Counts by bin in the window; a view, not to be changed."""
        if level:
            self._settle()
        counts: I32 = self._window[level][self._keys.rows[rank, key]]
        return counts

    def medians(self, level: int, rank: int, key: K) -> list[float | None]:
        """Median of every slot of a traced key, oldest first; None where a slot holds nothing."""
        r = self._keys.rows.get((rank, key))
        if r is None:
            return []
        if level:
            self._settle()
        return [None if v != v else v for v in self._medians[level][r][self._rings[level].order()].tolist()]


@dataclass(frozen=True, slots=True)
class RankHists(Generic[K]):
    """One rank's part of a HistBank, for reading."""

    bank: HistBank[K]
    rank: int

    @property
    def middles(self) -> F64:
        """Representative value of each bin."""
        return self.bank.middles

    def read(self, level: int) -> dict[K, Summary]:
        """See HistBank."""
        return self.bank.read(level, self.rank)

    def __contains__(self, key: K) -> bool:
        return self.bank.has(self.rank, key)

    def histogram(self, level: int, key: K) -> I32:
        """See HistBank."""
        return self.bank.histogram(level, self.rank, key)

    def medians(self, level: int, key: K) -> list[float | None]:
        """See HistBank."""
        return self.bank.medians(level, self.rank, key)
