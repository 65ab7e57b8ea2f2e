"""Why a gap: a partition of each gap by what the scheduler's main thread was doing, or what was done to it.

Every source says "in this interval the cause was c". Sources overlap; the stronger one wins (``PRIORITY``), so that
every nanosecond of a gap has exactly one cause, and what no source explains is ``other``. The parts therefore sum to
the gap, to the nanosecond.

Sources come at their own pace. A gap is split when every source that was announced (``expect``) has reported up to
the gap's end, or when the gap is ``PATIENCE_NS`` old.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, ranges
from sgtop_core.model.axis import MAX_RANKS, shifted

OTHER = "other"
NO_WORK = "no work"
PAUSED = "paused"
GC = "gc"
SAMPLING = "sampling"
PREEMPTED = "preempted"
THROTTLED = "throttled"
BLOCKED = "blocked"
WAITING = "waiting for "
"""Followed by the label of the rank that is waited for."""

PRIORITY: tuple[str, ...] = ("stage", "sampling", "blocked", "waiting", "gc", "throttled", "preempted", "idle")
"""Sources, weakest first. ``idle`` (no work, paused) is the strongest: who has nothing to do is not delayed. A rank
that waits for another sleeps, so ``waiting`` says more than ``blocked``."""

PATIENCE_NS = 1_000_000_000
_KEEP_NS = 20_000_000_000


class Names:
    """Causes as small numbers."""

    def __init__(self) -> None:
        self.names: list[str] = [OTHER]
        self._codes = {OTHER: 0}

    def code(self, name: str) -> int:
        """The number of ``name``; a new one where it is new. 0 is ``other``."""
        c = self._codes.get(name)
        if c is None:
            c = self._codes[name] = len(self.names)
            self.names.append(name)
        return c


@dataclass(frozen=True, slots=True)
class Timeline:
    """Intervals with a cause: sorted, never overlapping, of a length above 0."""

    t0: I64
    t1: I64
    code: I64

    def __len__(self) -> int:
        return len(self.t0)


NOTHING = Timeline(EMPTY, EMPTY, EMPTY)


def timeline(t0: I64, t1: I64, code: I64) -> Timeline:
    """Intervals from anywhere as a Timeline: sorted, and where two overlap the one that began earlier wins."""
    a, b, c = t0, t1, code
    if len(a) > 1 and bool(np.any(a[1:] < b[:-1])):
        order = np.argsort(t0, kind="stable")
        a, b, c = t0[order], t1[order], code[order]
        a = np.concatenate([a[:1], np.maximum(a[1:], np.maximum.accumulate(b)[:-1])])
    keep = b > a
    return Timeline(a, b, c) if keep.all() else Timeline(a[keep], b[keep], c[keep])


@dataclass(frozen=True, slots=True)
class Parts:
    """Pieces of intervals with their cause: index of the interval, cause, ns; parallel arrays."""

    which: I64
    code: I64
    ns: I64


def carve(a: I64, b: I64, which: I64, line: Timeline) -> tuple[Parts, I64, I64, I64]:
    """Cut out of pieces ``[a, b)`` what ``line`` covers.

    Returns:
        The covered parts, and what is left as new ``(a, b, which)``, in order.
    """
    lo = np.searchsorted(line.t1, a, "right")
    hi = np.searchsorted(line.t0, b, "left")
    piece, seg = ranges(lo, hi)
    if not len(piece):
        return Parts(EMPTY, EMPTY, EMPTY), a, b, which
    s = np.maximum(a[piece], line.t0[seg])
    e = np.minimum(b[piece], line.t1[seg])
    parts = Parts(which[piece], line.code[seg], e - s)
    # piece p with n covered stretches leaves n + 1: [a, s1) [e1, s2) … [en, b)
    n = np.maximum(hi - lo, 0)
    first = np.cumsum(n) - n + np.arange(len(a))
    at = np.arange(len(piece)) + piece
    left0, left1 = np.empty(len(a) + len(piece), np.int64), np.empty(len(a) + len(piece), np.int64)
    left0[first], left1[first + n] = a, b
    left1[at], left0[at + 1] = s, e
    keep = left1 > left0
    return parts, left0[keep], left1[keep], np.repeat(which, n + 1)[keep]


class _Source:
    def __init__(self) -> None:
        self.chunks: list[tuple[int, int, Timeline]] = []
        """(first start, last end, intervals on the common axis), in the order of their ends."""
        self.mark = np.full(MAX_RANKS, -1, np.int64)
        self.expected = np.zeros(MAX_RANKS, np.bool_)

    def put(self, t0: I64, t1: I64, code: I64, rank: I64) -> None:
        if not len(t0):
            return
        np.maximum.at(self.mark, rank, t1)
        line = timeline(shifted(t0, rank), shifted(t1, rank), code)
        if len(line):
            end = int(t1.max())
            self.chunks.append((int(t0.min()), end, line))
            if len(self.chunks) > 1 and end < self.chunks[-2][1]:  # a late one: keep them in the order of their ends
                self.chunks.sort(key=lambda c: c[1])

    def between(self, a: int, b: int) -> list[Timeline]:
        """The chunks that touch ``(a, b)``, oldest first."""
        hit: list[Timeline] = []
        for start, end, line in reversed(self.chunks):
            if end <= a:
                break
            if start < b:
                hit.append(line)
        hit.reverse()
        return hit


class AllSources:
    """What is known about the ranks' time, by source; the last 20 s of it."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._by = {s: _Source() for s in PRIORITY}

    def expect(self, source: str, rank: int, yes: bool = True) -> None:
        """Wait (or stop waiting) for ``source`` before a gap of ``rank`` is split."""
        self._by[source].expected[rank] = yes

    def push(self, source: str, t0: I64, t1: I64, code: I64, rank: I64) -> None:
        """Add intervals (ns) of ``source``."""
        self._by[source].put(t0, t1, code, rank)

    def reported(self, source: str, rank: I64, mark: I64) -> None:
        """``source`` has reported all it knows of these ranks up to ``mark`` (ns)."""
        np.maximum.at(self._by[source].mark, rank, mark)

    def clear(self, rank: int) -> None:
        """Forget a rank. Its intervals stay until they are old: the process that follows has later times."""
        for s in self._by.values():
            s.mark[rank], s.expected[rank] = -1, False

    def known_until(self) -> I64:
        """For each rank the time up to which all its expected sources have reported; far away where none is."""
        far = np.iinfo(np.int64).max
        known: I64 = np.min([np.where(s.expected, s.mark, far) for s in self._by.values()], axis=0)
        return known

    def mark(self, source: str, rank: int) -> int:
        """End (ns) of the latest interval of ``source``, or what ``reported`` said; -1 before the first."""
        return int(self._by[source].mark[rank])

    def only(self, source: str, a: int, b: int) -> Timeline:
        """The intervals of one source that touch ``(a, b)``, and perhaps some around them, on the common axis."""
        hit = self._by[source].between(a, b)
        if len(hit) <= 1:
            return hit[0] if hit else NOTHING
        return timeline(
            np.concatenate([c.t0 for c in hit]),
            np.concatenate([c.t1 for c in hit]),
            np.concatenate([c.code for c in hit]),
        )

    def partition(self, rank: I64, a: I64, b: I64) -> Parts:
        """Every nanosecond of the intervals ``[a, b)`` with exactly one cause."""
        if not len(a):
            return Parts(EMPTY, EMPTY, EMPTY)
        low, high = int(a.min()), int(b.max())
        a, b = shifted(a, rank), shifted(b, rank)
        which = np.arange(len(a))
        found: list[Parts] = []
        for source in reversed(PRIORITY):
            for line in self._by[source].between(low, high):
                if len(a):
                    parts, a, b, which = carve(a, b, which, line)
                    found.append(parts)
        found.append(Parts(which, np.zeros(len(a), np.int64), b - a))
        return Parts(
            np.concatenate([p.which for p in found]),
            np.concatenate([p.code for p in found]),
            np.concatenate([p.ns for p in found]),
        )

    def forget(self, before: int) -> None:
        """Drop what ended more than 20 s before ``before``."""
        for s in self._by.values():
            while s.chunks and s.chunks[0][1] < before - _KEEP_NS:
                s.chunks.pop(0)


class Sources:
    """One rank's part of AllSources, for those who know something about it; alone, a rank of its own."""

    def __init__(self, names: Names, all_ranks: AllSources | None = None, rank: int = 0) -> None:
        self.names = names
        self._all = all_ranks or AllSources(names)
        self._rank = rank

    def expect(self, source: str, yes: bool = True) -> None:
        """Wait (or stop waiting) for ``source`` before a gap is split."""
        self._all.expect(source, self._rank, yes)

    def push(self, source: str, t0: I64, t1: I64, code: I64, mark: int | None = None) -> None:
        """Add intervals (ns) of ``source``; ``mark`` says up to when it has reported all it knows."""
        self._all.push(source, t0, t1, code, np.full(len(t0), self._rank, np.int64))
        if mark is not None:
            self._all.reported(source, np.array([self._rank]), np.array([mark]))

    def mark(self, source: str) -> int:
        """End (ns) of the latest interval of ``source``, or what ``push`` was told; -1 before the first."""
        return self._all.mark(source, self._rank)

    def known_until(self) -> int:
        """Ns up to which all expected sources have reported; far away where none is expected."""
        return int(self._all.known_until()[self._rank])

    def partition(self, a: I64, b: I64) -> Parts:
        """Every nanosecond of the intervals ``[a, b)`` with exactly one cause."""
        return self._all.partition(np.full(len(a), self._rank, np.int64), a, b)
