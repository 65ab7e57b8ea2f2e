"""What the end of a window leaves of a graph replay, and what must not be counted because of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import I64, Bool

from .attribute import Forwards


@dataclass(frozen=True, slots=True)
class Cut:
    """Which records of a block to drop, and from when on (ns) the window holds nothing whole; None: to its end."""

    drop: Bool
    begin: int | None


def cut(b: Mapping[str, I64], forwards: Forwards, on: int, off: int) -> Cut:
    """The records of graph replays that ran, or waited to run, when tracing was switched off.

    Measured on an H200 (CUPTI 13.0.85): of the replay in flight, either no kernel comes at all, or every kernel comes
    with the end of the same node in a replay some steps later, tens of milliseconds too late. Kernels that were
    launched one by one end rightly. So does the replay that was in flight when torch's profiler stopped; its kernels
    come when tracing is switched on next, with the start that they had then: 600 ms "long", of a forward that was not
    traced.

    What else such a forward launched (its copies, its sampling) goes too: a forward is counted whole or not at all.

    Args:
        b: columns start, end (CLOCK_MONOTONIC ns), graph; at least one row.
        forwards: those that ran meanwhile.
        on: when the window began, ns.
        off: when it ended; far away while it lasts.
    """
    start = b["start"]
    graph = b["graph"] != 0
    stale = graph & (start < on)
    late = graph & ~stale & (b["end"] > off)
    unfinished, begin = forwards.unfinished(off, int(start.min()))
    drop = stale | late
    if late.any() or len(unfinished):
        # Their ends say nothing, so that they go to forwards by their start.
        owner = forwards.assign(start, start).forward
        numbers = np.union1d(unfinished, owner[late & (owner >= 0)])
        drop |= np.isin(owner, numbers)
    gone = drop & ~stale
    if gone.any():
        first = int(start[gone].min())
        begin = first if begin is None else min(begin, first)
    return Cut(drop, begin)
