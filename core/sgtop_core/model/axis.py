"""One time axis for all ranks.

Numpy costs per call, not per number: eight ranks worked through one by one cost eight times what they cost together.
So rows of all ranks are put side by side, rank after rank, and what needs order (gaps, overlaps, searches) is done on
times shifted by rank: ``t + rank × SHIFT`` keeps every rank's times apart and in order. SHIFT is a whole number of
every slot, tick and cell.
"""

from __future__ import annotations

import numpy as np

from sgtop_core.model.arrays import I64

MAX_RANKS = 64
SHIFT = 120_000_000_000 * 1_100_000
"""ns, 4.2 years: longer than a host has been up. 64 of them fit an int64."""


def shifted(t: I64, rank: I64) -> I64:
    """Times on the common axis."""
    out: I64 = t + rank * SHIFT
    return out


def firsts(rank: I64) -> I64:
    """Index of the first row of each rank; ``rank`` is sorted and not empty."""
    return np.concatenate([[0], np.flatnonzero(rank[1:] != rank[:-1]) + 1])


def lasts(rank: I64, first: I64) -> I64:
    """Index of the last row of each rank."""
    return np.concatenate([first[1:], [len(rank)]]) - 1


def before(x: I64, first: I64, carry: I64) -> I64:
    """Each row's predecessor in its rank; ``carry`` is that of the first rows."""
    out = np.empty_like(x)
    out[1:] = x[:-1]
    out[first] = carry
    return out
