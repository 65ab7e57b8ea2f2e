"""Rolling windows: 5 s, 60 s and 10 min, all kept up to date at once, each read in O(bins).

Time is cut into ticks of 0.25 s. A window is a ring of slots whose widths are whole ticks, with a running total
that a slot leaves when it gets too old, so that reading a window never looks at its events. The windows end at the
last whole tick (``end``), and the events up to there have all arrived, which makes counts and rates of one window
fit each other. The 60 s and 10 min windows lose their oldest slot at once, so they cover up to a slot more than
their name: ``Window.span`` says what they really cover.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sgtop_core.model.arrays import F64, I32, I64, split
from sgtop_core.model.bins import Counts, Durations

TICK_NS = 250_000_000
"""Width of a tick, and the time between two snapshots."""


@dataclass(frozen=True, slots=True)
class Window:
    """One window. ``slot_ns`` is the width of a slot and a multiple of TICK_NS."""

    seconds: float
    slot_ns: int
    slots: int

    def span(self, end: int, start: int) -> int:
        """Nanoseconds that the window covers when it ends at ``end`` and watching began at ``start``."""
        head = (end - 1) // self.slot_ns
        return max(end - max((head - self.slots + 1) * self.slot_ns, start), 0)


WINDOWS: tuple[Window, ...] = (
    Window(5.0, TICK_NS, 20),
    Window(60.0, 8 * TICK_NS, 31),
    Window(600.0, 80 * TICK_NS, 31),
)


def level(window_s: float) -> int:
    """Index into WINDOWS of the shortest window that holds ``window_s`` seconds."""
    return next((i for i, w in enumerate(WINDOWS) if window_s <= w.seconds), len(WINDOWS) - 1)


K = TypeVar("K", bound=Hashable)


class _Keys(Generic[K]):
    """Names of rows; a row once given stays."""

    def __init__(self) -> None:
        self.rows: dict[K, int] = {}

    def row(self, key: K) -> int:
        """Row of ``key``; a new one where it is new."""
        return self.rows.setdefault(key, len(self.rows))


class _Ring:
    """Position of one window's ring; says which slots have become too old."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.head = -1
        self.slot = 0
        """Place of the newest slot in the ring."""

    def forward(self, end: int) -> npt.NDArray[np.intp] | None:
        """Move to the slot that holds the last tick before ``end``.

        Returns:
            The slots to clear, or None where there are none.
        """
        new, n = (end - 1) // self.window.slot_ns, self.window.slots
        old = self.head
        if new <= old:
            return None
        self.head, self.slot = new, new % n
        if new == old + 1:
            return np.array([self.slot], np.intp)
        return (np.arange(new - min(new - old, n) + 1, new + 1) % n).astype(np.intp)

    def order(self) -> npt.NDArray[np.intp]:
        """Slots, oldest first."""
        n = self.window.slots
        return (np.arange(self.head - n + 1, self.head + 1) % n).astype(np.intp)


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
        self._keys: _Keys[tuple[int, K]] = _Keys()
        self.bins = bins
        self.middles: F64 = bins.middles()
        self._rings = [_Ring(w) for w in WINDOWS]
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


class TimeBank(Generic[K]):
    """Exact nanoseconds (or any whole amounts) by rank and key, in every window.

    Unlike HistBank it takes intervals and puts them where they happened: one that spans slots is cut, and one that is
    reported late still goes to the slots that it covers, as long as a window holds them.
    """

    def __init__(self) -> None:
        self._keys: _Keys[tuple[int, K]] = _Keys()
        self._rings = [_Ring(w) for w in WINDOWS]
        self._sum: list[I64] = [np.zeros((8, w.slots), np.int64) for w in WINDOWS]
        self._owed: list[tuple[I64, I64, I64]] = []
        """(rows, ticks, amounts) that the windows from the second on have not got yet."""
        self._read: dict[int, dict[int, dict[K, int]]] = {}

    def row(self, rank: int, key: K) -> int:
        """Row number of ``key``, for ``add``."""
        r = self._keys.row((rank, key))
        if r >= len(self._sum[0]):
            self._sum = [np.concatenate([a, np.zeros_like(a)]) for a in self._sum]
        return r

    def clear(self, rank: int) -> None:
        """Forget everything of a rank."""
        self._settle()
        self._read.clear()
        rows = [r for (owner, _), r in self._keys.rows.items() if owner == rank]
        for x in self._sum:
            x[rows] = 0

    def advance(self, end: int) -> None:
        """Move every window to ``end``."""
        self._read.clear()
        if (end - 1) // WINDOWS[1].slot_ns > self._rings[1].head:
            self._settle()
        for i, ring in enumerate(self._rings):
            old = ring.forward(end)
            if old is not None:
                self._sum[i][:, old] = 0

    def add(self, rows: I64, t0: I64, t1: I64) -> None:
        """Add intervals of ns to ``rows``; call after ``advance``."""
        now = self._rings[0].head * TICK_NS
        early = np.flatnonzero(t0 < now)
        if not len(early):  # the common case: all in the newest tick
            self.add_now(rows, t1 - t0)
            return
        # the few that began before it are cut, the rest is in the newest tick as a whole
        which, tick, a, b = split(t0[early], t1[early], TICK_NS)
        self.add_ticks(rows[early][which], tick, b - a)
        if len(early) < len(t0):
            ns = t1 - t0
            ns[early] = 0
            self.add_now(rows, ns)

    def add_now(self, rows: I64, amounts: I64) -> None:
        """Add amounts that belong to the newest tick."""
        sums = np.zeros(len(self._keys.rows), np.int64)
        np.add.at(sums, rows, amounts)
        hit = np.flatnonzero(sums)
        if len(hit):
            self._sum[0][hit, self._rings[0].slot] += sums[hit]
            self._owed.append((hit, np.full(len(hit), self._rings[0].head, np.int64), sums[hit]))

    def add_ticks(self, rows: I64, tick: I64, amounts: I64) -> None:
        """Add amounts that belong to the tick number ``tick`` (t // TICK_NS)."""
        if not len(amounts):
            return
        # many rows fall on few (row, tick) pairs: sum those first
        low, high = int(tick.min()), int(tick.max())
        width = high - low + 1
        n = len(self._keys.rows)
        if width * n <= 8192:
            dense = np.zeros(n * width, np.int64)
            np.add.at(dense, rows * width + (tick - low), amounts)
            hit = np.flatnonzero(dense)
            rows, tick, amounts = hit // width, hit % width + low, dense[hit]
        self._put(0, rows, tick, amounts)
        self._owed.append((rows, tick, amounts))

    def _put(self, i: int, rows: I64, tick: I64, amounts: I64) -> None:
        ring, w = self._rings[i], self._rings[i].window
        slot = tick // (w.slot_ns // TICK_NS)
        ok = (slot > ring.head - w.slots) & (slot <= ring.head)
        np.add.at(self._sum[i].reshape(-1), (rows * w.slots + slot % w.slots)[ok], amounts[ok])

    def _settle(self) -> None:
        if self._owed:
            rows, tick, amounts = (np.concatenate([o[k] for o in self._owed]) for k in range(3))
            self._owed.clear()
            for i in range(1, len(WINDOWS)):
                self._put(i, rows, tick, amounts)

    def read(self, level: int, rank: int) -> dict[K, int]:
        """Amount by key in the window of a rank, keys that are 0 left out."""
        if level not in self._read:
            if level:
                self._settle()
            out: dict[int, dict[K, int]] = {}
            sums = self._sum[level][: len(self._keys.rows)].sum(axis=1).tolist()
            for (owner, key), v in zip(self._keys.rows, sums, strict=True):
                if v:
                    out.setdefault(owner, {})[key] = v
            self._read[level] = out
        return self._read[level].get(rank, {})

    def slots(self, level: int, rank: int, key: K) -> I64 | None:
        """Amounts of the slots, oldest first."""
        if level:
            self._settle()
        r = self._keys.rows.get((rank, key))
        return None if r is None else self._sum[level][r][self._rings[level].order()]


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


@dataclass(frozen=True, slots=True)
class RankTimes(Generic[K]):
    """One rank's part of a TimeBank, for reading."""

    bank: TimeBank[K]
    rank: int

    def read(self, level: int) -> dict[K, int]:
        """See TimeBank."""
        return self.bank.read(level, self.rank)

    def slots(self, level: int, key: K) -> I64 | None:
        """See TimeBank."""
        return self.bank.slots(level, self.rank, key)
