"""Times and amounts in rolling windows, put where they happened, by rank and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np

from sgtop_core.model.arrays import I64, split
from sgtop_core.model.windows import TICK_NS, WINDOWS, K, Keys, Ring


class TimeBank(Generic[K]):
    """Exact nanoseconds (or any whole amounts) by rank and key, in every window.

    Unlike HistBank it takes intervals and puts them where they happened: one that spans slots is cut, and one that is
    reported late still goes to the slots that it covers, as long as a window holds them.
    """

    def __init__(self) -> None:
        self._keys: Keys[tuple[int, K]] = Keys()
        self._rings = [Ring(w) for w in WINDOWS]
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
