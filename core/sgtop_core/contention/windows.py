"""Contention of one thread in the rolling windows of the model: sums, the longest wait, and culprits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sgtop_core.model.windows import WINDOWS, Window

MOST_CULPRITS = 24
"""In one slot; the smallest are put together under OTHERS beyond it."""

Who = tuple[int, str, bool]
"""(pid, name, certain)"""
OTHERS: Who = (-2, "others", True)


@dataclass(slots=True)
class Sums:
    """What happened in a stretch of time. Times in ns."""

    wait: int = 0
    preemptions: int = 0
    longest: int = 0
    throttled: int = 0
    nr_throttled: int = 0
    migrations: int = 0
    near: int = 0
    """Readings that found the thread near its GPU."""
    far: int = 0
    culprits: dict[Who, list[int]] = field(default_factory=dict)
    """Who → [preemptions, ns]."""

    def credit(self, who: Who, count: int, ns: int) -> None:
        """Put a wait down to somebody."""
        if who not in self.culprits and len(self.culprits) >= MOST_CULPRITS:
            least = min(self.culprits, key=lambda w: self.culprits[w][1] if w != OTHERS else 1 << 62)
            n, t = self.culprits.pop(least)
            other = self.culprits.setdefault(OTHERS, [0, 0])
            other[0] += n
            other[1] += t
        c = self.culprits.setdefault(who, [0, 0])
        c[0] += count
        c[1] += ns

    def add(self, o: Sums) -> None:
        """Add another stretch."""
        self.wait += o.wait
        self.preemptions += o.preemptions
        self.longest = max(self.longest, o.longest)
        self.throttled += o.throttled
        self.nr_throttled += o.nr_throttled
        self.migrations += o.migrations
        self.near += o.near
        self.far += o.far
        for who, (n, ns) in o.culprits.items():
            self.credit(who, n, ns)


class _Ring:
    def __init__(self, window: Window) -> None:
        self.window = window
        self.slots: deque[tuple[int, Sums]] = deque(maxlen=window.slots + 1)

    def slot(self, t: int) -> Sums | None:
        """The slot of a time; None where it is older than the window."""
        number = t // self.window.slot_ns
        if not self.slots or number > self.slots[-1][0]:
            self.slots.append((number, Sums()))
            return self.slots[-1][1]
        for n, sums in reversed(self.slots):
            if n == number:
                return sums
            if n < number:
                break
        # A slot that nothing fell into yet, between others: rare, and a deque cannot take it in cheaply elsewhere.
        if number <= self.slots[-1][0] - self.window.slots:
            return None
        made = (number, Sums())
        items = sorted([*self.slots, made], key=lambda x: x[0])
        self.slots = deque(items, maxlen=self.window.slots + 1)
        return made[1] if made in self.slots else None

    def read(self, end: int) -> Sums:
        out = Sums()
        head = (end - 1) // self.window.slot_ns
        for n, sums in self.slots:
            if n > head - self.window.slots:
                out.add(sums)
        return out


class Contention:
    """All windows of one thread."""

    def __init__(self) -> None:
        self._rings = [_Ring(w) for w in WINDOWS]

    def add(self, t: int, part: Sums) -> None:
        """What ended at ``t`` (ns)."""
        for ring in self._rings:
            slot = ring.slot(t)
            if slot is not None:
                slot.add(part)

    def read(self, level: int, end: int) -> Sums:
        """The window ``level`` that ends at ``end`` (ns)."""
        return self._rings[level].read(end)
