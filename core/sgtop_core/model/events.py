"""Events as the model takes them: columns of the wire's tables as numpy views, and a box that holds them back.

The box is why ingest is cheap: a frame only leaves its bytes there, and the columns of all frames of a table are
joined and looked at once a tick.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sgtop_agent.wire import TABLES, Frame, WireError

from sgtop_core.model.arrays import I64
from sgtop_core.model.axis import firsts
from sgtop_core.model.rounding import TIME_NS, UNITS, rounded

Raw = bytes | memoryview

WATERMARK: Mapping[str, tuple[str, ...]] = {
    "step": ("t1",),
    "forward": ("t1", "gpu2"),
    "stage": ("t1",),
    "gc": ("t1",),
    "result": ("t",),
    "queue": ("t",),
}
"""Columns whose maximum is the time at which a row became known; tables are in this order."""


_TIMES: Mapping[str, slice] = {
    "step": slice(2, 4),
    "forward": slice(3, 8),
    "stage": slice(1, 3),
    "gc": slice(1, 3),
    "result": slice(1, 2),
    "queue": slice(0, 1),
}
"""Columns of each table that are times; they stand side by side."""

_OLDEST_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one table, rank after rank, in order of time within a rank; every column of the wire's schema is there,
    -1 where the sender had none.
    """

    table: str
    columns: Mapping[str, I64]
    rank: I64

    def __len__(self) -> int:
        return len(self.rank)

    def __getitem__(self, name: str) -> I64:
        return self.columns[name]

    def of(self, rank: int) -> Batch:
        """The rows of one rank."""
        a, b = np.searchsorted(self.rank, [rank, rank + 1])
        return Batch(self.table, {c: v[a:b] for c, v in self.columns.items()}, self.rank[a:b])


def raw_columns(frame: Frame) -> tuple[str, int, Mapping[str, Raw]]:
    """(table, rows, columns) of an ``ev`` frame. The columns may be bytes or memoryviews.

    Raises:
        WireError: a field is missing, or a column does not hold that many int64.
    """
    table, n, cols = frame.get("e"), frame.get("n"), frame.get("c")
    if not isinstance(table, str) or not isinstance(n, int) or n < 0 or not isinstance(cols, dict):
        raise WireError("an ev frame without e, n or c")
    size = 8 * n
    for name, raw in cols.items():
        if (type(raw) is not bytes and not isinstance(raw, memoryview)) or len(raw) != size:
            raise WireError(f"column {table}.{name} does not hold {n} values")
    return table, n, cols


def batch(frame: Frame) -> Batch:
    """One ``ev`` frame as a Batch; unknown columns are left out.

    Raises:
        WireError: an unknown table, or columns that are not as ``raw_columns`` wants them.
    """
    table, n, cols = raw_columns(frame)
    if table not in TABLES:
        raise WireError(f"unknown table {table}")
    return Batch(table, {c: _view(cols.get(c, b"\xff" * (8 * n))) for c in TABLES[table]}, np.zeros(n, np.int64))


_I64 = struct.Struct("<q")


def _first(raw: Raw) -> int:
    n: int = _I64.unpack_from(raw)[0]
    return n


def _view(raw: Any) -> I64:
    return np.frombuffer(raw, "<i8").astype(np.int64, copy=False)


class Inbox:
    """Frames of all ranks, held until the time of their rows has passed.

    ``put`` never copies; ``take`` joins all columns of a table into one array of (column, row). Bounded by ``max_rows``
    a rank and table: what does not fit is dropped, oldest first, and counted in ``dropped``.
    """

    def __init__(self, max_rows: int = 500_000) -> None:
        self._frames: dict[str, dict[int, list[tuple[int, Mapping[str, Raw]]]]] = {t: {} for t in TABLES}
        """Table → rank → (time at which the first row became known, columns)."""
        self._rows: dict[str, dict[int, int]] = {t: {} for t in TABLES}
        self._left: dict[str, tuple[I64, I64] | None] = dict.fromkeys(TABLES)
        """Rows that were joined but whose time had not come: (columns, rank)."""
        self._max = max_rows
        self.dropped: dict[int, dict[str, int]] = {}

    def put(self, rank: int, frame: Frame) -> bool:
        """Keep an ``ev`` frame of a rank.

        Returns:
            False where its table is not known (a newer agent); the frame is ignored then.

        Raises:
            WireError: the frame is malformed.
        """
        table, n, cols = raw_columns(frame)
        names = TABLES.get(table)
        if names is None:
            return False
        if n == 0:
            return True
        if not names.keys() <= cols.keys():
            cols = {c: cols.get(c, b"\xff" * (8 * n)) for c in names}
        rows = self._rows[table]
        frames = self._frames[table].setdefault(rank, [])
        if rows.get(rank, 0) + n > self._max:
            lost = self.dropped.setdefault(rank, {})
            lost[table] = lost.get(table, 0) + rows.get(rank, 0)
            frames.clear()
            self._forget_left(rank, table)
            rows[rank] = 0
        frames.append((max(_first(cols[c]) for c in WATERMARK[table]), cols))
        rows[rank] = rows.get(rank, 0) + n
        return True

    def clear(self, rank: int) -> None:
        """Forget everything of a rank."""
        for table in TABLES:
            self._frames[table].pop(rank, None)
            self._rows[table].pop(rank, None)
            self._forget_left(rank, table)
        self.dropped.pop(rank, None)

    def _forget_left(self, rank: int, table: str) -> None:
        left = self._left[table]
        if left is not None:
            keep = left[1] != rank
            self._left[table] = (left[0][:, keep], left[1][keep]) if keep.any() else None

    def _join(self, table: str, until: int) -> tuple[I64, I64] | None:
        """All rows of frames that have begun by ``until`` as (columns, rank), rank after rank."""
        waiting, names = self._frames[table], tuple(TABLES[table])
        kept: list[Mapping[str, Raw]] = []
        order, counts = [], []
        for r in sorted(waiting):
            frames = waiting[r]
            n = next((i for i, (known, _) in enumerate(frames) if known > until), len(frames))
            if n:
                here = [cols for _, cols in frames[:n]]
                del frames[:n]
                kept += here
                order.append(r)
                counts.append(sum(len(f[names[0]]) for f in here) // 8)
        left = self._left[table]
        if not order:
            return left
        new = _view(b"".join([f[c] for c in names for f in kept])).reshape(len(names), -1)
        rank = np.repeat(np.array(order, np.int64), counts)
        if left is None:
            return new, rank
        rows = np.concatenate([left[0], new], axis=1)
        rank = np.concatenate([left[1], rank])
        # what was left comes first within its rank; small numbers sort by radix
        at = np.argsort(rank.astype(np.uint8), kind="stable")
        return rows.take(at, axis=1), rank[at]

    def take(self, table: str, until: int) -> Batch | None:
        """The rows of ``table`` that became known at or before ``until`` (ns), or None where there are none."""
        joined = self._join(table, until)
        if joined is None:
            return None
        rows, rank = joined
        names = tuple(TABLES[table])
        marks = WATERMARK[table]
        mark = rows[names.index(marks[0])]
        for other in marks[1:]:
            mark = np.maximum(mark, rows[names.index(other)])
        arrived = len(rank)
        self._left[table] = None
        if int(mark.max()) > until:
            # rows are in the order in which they became known, but for a rare swap between threads: what comes after
            # a row that has to wait waits with it
            first = firsts(rank)
            waiting = np.cumsum(mark > until)
            earlier = np.concatenate([[0], waiting[first[1:] - 1]])
            ready = waiting == np.repeat(earlier, np.diff(np.append(first, arrived)))
            later, now = np.flatnonzero(~ready), np.flatnonzero(ready)
            self._left[table] = (rows.take(later, axis=1), rank[later])
            rows, rank = rows.take(now, axis=1), rank[now]
        counts = np.bincount(rank).tolist()
        mine = self._rows[table]
        for r, n in enumerate(counts):
            if n:
                mine[r] = mine.get(r, 0) - n
        if not len(rank):
            return None
        rows = rows.copy()
        times = rows[_TIMES[table]]
        low = until - _OLDEST_NS
        if int(times.min()) < low or int(times.max()) > until:
            # a time that cannot be is not worth an hour of cells; -1 is "not known" and stays
            times[:] = np.where(times == -1, times, np.minimum(np.maximum(times, low), until))
        times[:] = rounded(times, TIME_NS)
        for column, unit in UNITS[table].items():
            if unit != TIME_NS:
                i = names.index(column)
                rows[i] = rounded(rows[i], unit)
        return Batch(table, dict(zip(names, rows, strict=True)), rank)
