"""A bounded ring of rows of integers: the main thread appends, the agent's thread takes, nothing locks."""

from __future__ import annotations

from array import array
from typing import Any


class Rows:
    """Rows of ``width`` values in one flat list. ``put(tuple)`` adds one; it is ``list.extend``, so atomic.

    A hook on the hot path does what ``add`` does itself: ``put`` while ``len(data) < limit``, else count ``lost``.
    """

    __slots__ = ("data", "limit", "lost", "put", "width")

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.data: list[int] = []
        self.put: Any = self.data.extend
        self.lost = 0
        self.limit = width * capacity

    def add(self, row: tuple[int, ...]) -> None:
        """Add a row, or count it as lost when the ring is full."""
        if len(self.data) < self.limit:
            self.put(row)
        else:
            self.lost += 1

    def take(self, most: int) -> list[array[int]]:
        """Up to ``most`` rows, as columns. Agent's thread only."""
        data, width = self.data, self.width
        n = min(len(data), most * width)
        chunk = data[:n]
        del data[:n]
        return [array("q", chunk[i::width]) for i in range(width)]

    def __len__(self) -> int:
        return len(self.data) // self.width
