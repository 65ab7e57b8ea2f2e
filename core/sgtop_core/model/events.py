"""Events as the model takes them: columns of the wire's tables as numpy views, and a box that holds them back.

The box is why ingest is cheap: a frame only leaves its bytes there, and the columns of all frames of a table are
joined and looked at once a tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sgtop_agent.wire import TABLES, Frame, WireError

from sgtop_core.model.arrays import I64

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
    """Rows of one table; every column of the wire's schema is there, -1 where the sender had none."""

    table: str
    columns: Mapping[str, I64]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> I64:
        return self.columns[name]


def raw_columns(frame: Frame) -> tuple[str, int, Mapping[str, Raw]]:
    """(table, rows, columns) of an ``ev`` frame. The columns may be bytes or memoryviews.

    Raises:
        WireError: a field is missing, or a column does not hold that many int64.
    """
    table, n, cols = frame.get("e"), frame.get("n"), frame.get("c")
    if not isinstance(table, str) or not isinstance(n, int) or n < 0 or not isinstance(cols, dict):
        raise WireError("an ev frame without e, n or c")
    for name, raw in cols.items():
        if not isinstance(raw, (bytes, memoryview)) or len(raw) != 8 * n:
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
    return Batch(table, {c: _view(cols.get(c, b"\xff" * (8 * n))) for c in TABLES[table]})


def _view(raw: Any) -> I64:
    return np.frombuffer(raw, "<i8").astype(np.int64, copy=False)


class Inbox:
    """Frames of one rank, held until the time of their rows has passed.

    ``put`` never copies; ``take`` joins all columns of a table into one array of (column, row). Bounded by ``max_rows`` a
    table: what does not fit is dropped, oldest first, and counted in ``dropped``.
    """

    def __init__(self, max_rows: int = 500_000) -> None:
        self._frames: dict[str, list[Mapping[str, Raw]]] = {t: [] for t in TABLES}
        self._left: dict[str, I64 | None] = dict.fromkeys(TABLES)
        self._rows = dict.fromkeys(TABLES, 0)
        self._max = max_rows
        self.dropped: dict[str, int] = {}

    def put(self, frame: Frame) -> bool:
        """Keep an ``ev`` frame.

        Returns:
            False where its table is not known (a newer agent); the frame is ignored then.

        Raises:
            WireError: the frame is malformed.
        """
        table, n, cols = raw_columns(frame)
        frames = self._frames.get(table)
        if frames is None:
            return False
        if n == 0:
            return True
        if self._rows[table] + n > self._max:
            self.dropped[table] = self.dropped.get(table, 0) + self._rows[table]
            frames.clear()
            self._left[table] = None
            self._rows[table] = 0
        if not TABLES[table].keys() <= cols.keys():
            cols = {c: cols.get(c, b"\xff" * (8 * n)) for c in TABLES[table]}
        frames.append(cols)
        self._rows[table] += n
        return True

    def take(self, table: str, until: int) -> Batch | None:
        """The rows of ``table`` that became known at or before ``until`` (ns), or None where there are none."""
        if not self._rows[table]:
            return None
        frames, names = self._frames[table], tuple(TABLES[table])
        left = self._left[table]
        if frames:
            raw = b"".join([f[c] for c in names for f in frames])
            new = _view(raw).reshape(len(names), -1)
            rows = new if left is None else np.concatenate([left, new], axis=1)
            frames.clear()
        else:
            assert left is not None
            rows = left
        marks = WATERMARK[table]
        first = rows[names.index(marks[0])]
        mark = first if len(marks) == 1 else np.maximum(first, rows[names.index(marks[1])])
        n = cut = len(mark)
        if int(mark[-1]) > until:
            # rows are in the order in which they became known, but for a rare swap between threads
            cut = int(np.searchsorted(np.maximum.accumulate(mark), until, "right"))
        self._left[table] = rows[:, cut:] if cut < n else None
        self._rows[table] = n - cut
        if not cut:
            return None
        rows = rows[:, :cut]
        times = rows[_TIMES[table]]
        low = until - _OLDEST_NS
        if int(times.min()) < low or int(times.max()) > until:
            # a time that cannot be is not worth an hour of cells; -1 is "not known" and stays
            rows = rows.copy()
            rows[_TIMES[table]] = np.where(times == -1, times, np.minimum(np.maximum(times, low), until))
        return Batch(table, dict(zip(names, rows, strict=True)))
