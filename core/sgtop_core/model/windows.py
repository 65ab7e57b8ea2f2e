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


class Keys(Generic[K]):
    """Names of rows; a row once given stays."""

    def __init__(self) -> None:
        self.rows: dict[K, int] = {}

    def row(self, key: K) -> int:
        """Row of ``key``; a new one where it is new."""
        return self.rows.setdefault(key, len(self.rows))


class Ring:
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
