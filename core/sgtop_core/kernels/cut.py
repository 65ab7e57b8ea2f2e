"""Forwards that CUPTI tells only in part: which records, and which forwards, must not be counted.

Measured on an H200 (CUPTI 13.0.85):

* Of kernels that were launched one by one and still ran, or waited to run, when a window ended, many come without
  times: on a server of prefills 263 of 2,429, so that one of four forwards had 24 of its 36 layers.
* Of the replay in flight when a window ends, no kernel comes, or a part, or all of them with the end of the same node
  in a replay some steps later, tens of milliseconds too late.
* The replay that was in flight when torch's profiler stopped comes when tracing is switched on next, with the start
  that it had then: 600 ms "long".
* After a window that cut a replay, one in the middle of the next window may lack most of its kernels: 172 to 515 were
  left of the 834 of a MoE model, in 7 windows of 15.

So a forward that ran on when its window ended is left out. A graph has as many kernels in each replay: a forward that
replayed one and has fewer than its like is left out too. With all that they launched, and the time in which they ran
is not called traced: neither busy nor idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import I64, Bool

from .attribute import Forwards, Owners

ENOUGH = 0.9
"""Kernels at a replay's ends may go to its neighbour: events and kernels are on one clock to some tens of µs."""
SELDOM = 0.25
"""Replays that lack kernels: one or two in a window of a hundred, seen."""
_LIKE = 64
_KINDS = 4096


@dataclass(frozen=True, slots=True)
class Cut:
    """What to leave out of a block."""

    keep: Bool
    """Records that are counted."""
    owners: Owners
    """Of those."""
    holes: Mapping[str, I64]
    """Forwards that are left out: columns begin, finish (ns), code, t0, by begin."""


class Replays:
    """Which forwards have fewer kernels of graphs than others of their mode and batch size."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], deque[int]] = {}
        self._replaying: set[int] = set()
        """Codes of which graphs' kernels were ever seen."""
        self._judged: dict[int, bool] = {}
        """Running number → whole. Records may come late: a forward is judged once."""

    def lacking(self, rows: Mapping[str, I64], counts: I64) -> I64:
        """Running numbers of those that have fewer than the most of their latest like.

        Args:
            rows: forwards: columns number, code, bs, graph, gpu0.
            counts: kernels of graphs that each of them has in the records.
        """
        # Without its GPU times a forward's kernels are a guess.
        known = (rows["graph"] == 1) & (rows["gpu0"] > 0)
        columns = (rows["number"], rows["code"], rows["bs"], counts)
        news = [row for row in zip(*(c[known].tolist() for c in columns), strict=True) if row[0] not in self._judged]
        if len(self._counts) > _KINDS:
            self._counts.clear()
        for _, code, bs, n in news:
            if n:
                self._replaying.add(code)
            self._counts.setdefault((code, bs), deque(maxlen=_LIKE)).append(n)
        for number, code, bs, n in news:
            self._judged[number] = code not in self._replaying or (n > 0 and not self._short(n, self._counts[code, bs]))
        while len(self._judged) > _KINDS:
            del self._judged[next(iter(self._judged))]
        return np.array([n for n in rows["number"].tolist() if not self._judged.get(n, True)], np.int64)

    @staticmethod
    def _short(n: int, like: Sequence[int]) -> bool:
        """Whether ``n`` is too few. Where many are, the number varies by itself (drafts of several lengths)."""
        least = ENOUGH * max(like)
        return n < least and sum(0 < each < least for each in like) <= max(1, len(like) * SELDOM)


def cut(b: Mapping[str, I64], forwards: Forwards, replays: Replays, on: int, off: int) -> Cut:
    """What to leave out of records of one window.

    Args:
        b: columns start, end (CLOCK_MONOTONIC ns), graph; at least one row.
        forwards: those that ran meanwhile.
        replays: what the blocks before showed.
        on: when the window began, ns.
        off: when it ended; far away while it lasts.
    """
    start, end = b["start"], b["end"]
    graph = b["graph"] != 0
    stale = graph & (start < on)
    late = graph & ~stale & (end > off)
    owners = forwards.assign(start, np.where(late, start, end))  # a late end says nothing
    owner = owners.forward
    ran, which = np.unique(owner[~stale], return_inverse=True)
    counts = np.bincount(which, weights=(graph & ~late)[~stale], minlength=len(ran)).astype(np.int64)
    rows = forwards.rows(ran)
    lost = replays.lacking(rows, counts[np.searchsorted(ran, rows["number"])])
    unfinished = forwards.unfinished(off, int(start.min()))["number"]
    lost = np.unique(np.concatenate((lost, owner[late & (owner >= 0)], unfinished[np.isin(unfinished, ran)])))
    keep = ~(stale | late | np.isin(owner, lost))
    return Cut(keep, Owners(owners.code[keep], owner[keep], owners.host[keep]), forwards.rows(lost))


def filled(start: I64, end: I64, owners: Owners, holes: Mapping[str, I64]) -> tuple[I64, I64, I64, I64]:
    """Start, end, code and host time of what is counted and of the holes, by start: a hole is no idle time."""
    if not len(holes["begin"]):
        return start, end, owners.code, owners.host
    pairs = ((start, "begin"), (end, "finish"), (owners.code, "code"), (owners.host, "t0"))
    begin, finish, code, host = (np.concatenate((column, holes[name])) for column, name in pairs)
    order = np.argsort(begin, kind="stable")
    return begin[order], finish[order], code[order], host[order]


def without(stretches: list[tuple[int, int]], holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """``stretches`` less ``holes``; both are ordered and do not overlap among themselves."""
    out = []
    for a, b in stretches:
        for h0, h1 in holes:
            if h1 > a and h0 < b:
                if h0 > a:
                    out.append((a, h0))
                a = min(h1, b)
        out.append((a, b))
    return out
