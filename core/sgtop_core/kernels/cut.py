"""What switching tracing off does to graph replays: which records, and which forwards, must not be counted.

Measured on an H200 (CUPTI 13.0.85). Kernels that were launched one by one are not concerned; their ends are right.

* Of the replay in flight when a window ends, no kernel comes, or a part, or all of them with the end of the same node
  in a replay some steps later, tens of milliseconds too late.
* What it still owes is paid in the next window: CUPTI gives the end of the same node of a replay in *its* middle to the
  old kernel (start before the window, end in it), and the new kernel never comes. So that replay has a hole; of 834
  kernels of a MoE model's replay 234 were left. torch's profiler leaves the same debts.

A forward is counted whole or not at all: with a cut replay its copies and its sampling go too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, Bool

from .attribute import Forwards, Owners

_NO_HOLES = dict.fromkeys(("begin", "finish", "code", "t0"), EMPTY)


@dataclass(frozen=True, slots=True)
class Cut:
    """What to leave out of a block."""

    drop: Bool
    """Records that are not counted."""
    begin: int | None
    """From when on (ns) the window holds nothing whole; None: to its end."""
    holes: Mapping[str, I64]
    """Forwards in the window's middle that lack kernels: columns begin, finish (ns), code, t0."""


def cut(b: Mapping[str, I64], forwards: Forwards, on: int, off: int) -> Cut:
    """What to leave out of records of one window.

    Args:
        b: columns start, end (CLOCK_MONOTONIC ns), graph; at least one row.
        forwards: those that ran meanwhile.
        on: when the window began, ns.
        off: when it ended; far away while it lasts.
    """
    start, end = b["start"], b["end"]
    graph = b["graph"] != 0
    stale = graph & (start < on)
    late = graph & ~stale & (end > off)
    lost, begin = forwards.unfinished(off, int(start.min()))
    holes, holed = _NO_HOLES, EMPTY
    if stale.any():
        paid = end[stale & (end > on) & (end < off)]
        by = forwards.assign(paid, paid).forward
        holed = np.setdiff1d(by[by >= 0], lost)
        holes = forwards.rows(holed)
    drop = stale | late
    if late.any() or len(lost) or len(holed):
        # The ends of what was cut say nothing, so that records go to forwards by their start.
        owner = forwards.assign(start, start).forward
        lost = np.union1d(lost, owner[late & (owner >= 0)])
        gone = late | np.isin(owner, lost)
        if gone.any():
            first = int(start[gone].min())
            begin = first if begin is None else min(begin, first)
        drop |= gone | np.isin(owner, holed)
    return Cut(drop, begin, holes)


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
