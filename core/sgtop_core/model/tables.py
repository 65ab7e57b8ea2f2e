"""Lookup tables from (rank, number) to rows of a bank, which fill themselves."""

from __future__ import annotations

import numpy as np

from sgtop_core.model.arrays import I64, Bool
from sgtop_core.model.axis import MAX_RANKS
from sgtop_core.model.hist_bank import HistBank
from sgtop_core.model.steps import MODES
from sgtop_core.model.time_bank import TimeBank

_MOST = 2.0**53
_WIDTH = 2 * MODES
"""Numbers of a key: a mode, or 64 × runner + mode."""


class Rows:
    """Rows of a HistBank under (what, number)."""

    def __init__(self, bank: HistBank[tuple[str, int]]) -> None:
        self._bank = bank
        self._tables: dict[str, I64] = {}

    def get(self, what: str, rank: I64, key: I64) -> I64:
        """The row of each (rank, key)."""
        table = self._tables.get(what)
        if table is None:
            table = self._tables[what] = np.full(MAX_RANKS * _WIDTH, -1, np.int64)
        at = rank * _WIDTH + key
        rows: I64 = table[at]
        if int(rows.min()) < 0:
            for i in np.unique(at[rows < 0]).tolist():
                table[i] = self._bank.row(i // _WIDTH, (what, i % _WIDTH), trace=what == "step")
            rows = table[at]
        return rows


class Blocks:
    """Sums by (rank, key) of several amounts at once, into a TimeBank."""

    def __init__(self, bank: TimeBank[tuple[str, int]]) -> None:
        self._bank = bank
        self._rows: dict[tuple[str, ...], I64] = {}

    def add(self, names: tuple[str, ...], rank: I64, key: I64, *amounts: I64 | Bool) -> None:
        """Add amounts to the tick that ends now, under (name, key): one name for each column."""
        if not len(key):
            return
        at = rank * _WIDTH + key
        groups = np.flatnonzero(np.bincount(at))
        block = self._rows.get(names)
        if block is None:
            block = self._rows[names] = np.full((MAX_RANKS * _WIDTH, len(names)), -1, np.int64)
        rows = block[groups]
        if int(rows.min()) < 0:
            for i in groups[rows[:, 0] < 0].tolist():
                block[i] = [self._bank.row(i // _WIDTH, (what, i % _WIDTH)) for what in names]
            rows = block[groups]
        # sums of whole numbers far below 2^53 are exact as floats; what is not below it is no count of tokens
        sums = [np.minimum(np.bincount(at, weights=a)[groups], _MOST).astype(np.int64) for a in amounts]
        self._bank.add_now(rows.T.reshape(-1), np.concatenate(sums))
