"""Steps in a row: how long each took, and what its forwards and its result add to it later. All ranks together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, Bool
from sgtop_core.model.axis import MAX_RANKS, before, firsts, lasts, shifted
from sgtop_core.model.causes import AllSources
from sgtop_core.model.events import Batch

MODES = 64
"""Mode numbers from 0 to 62 are SGLang's; 63 stands for anything else."""


def mode_numbers(raw: I64) -> I64:
    """Mode numbers with everything outside of 0 to 62 as 63."""
    return np.where((raw >= 0) & (raw < MODES - 1), raw, MODES - 1)


_UNKNOWN = np.array([[-1], [0], [0]], np.int64)


class Recent:
    """The latest 8,192 steps of each rank by ``forward_ct``, for joins."""

    size = 1 << 13

    def __init__(self) -> None:
        self._ct = np.full((MAX_RANKS, self.size), -1, np.int64).reshape(-1)
        self._kept = np.zeros((3, MAX_RANKS * self.size), np.int64)

    def put(self, rank: I64, ct: I64, mode: I64, tokens: I64, entry: I64) -> None:
        """Remember steps; ``tokens`` as they were counted, ``entry`` of ``run_batch`` in ns."""
        at = rank * self.size + ct % self.size
        self._ct[at] = ct
        self._kept[:, at] = mode, tokens, entry

    def find(self, rank: I64, ct: I64) -> tuple[I64, I64, I64]:
        """(mode, tokens, entry) of each step; mode -1 where it is not known."""
        at = rank * self.size + ct % self.size
        known = (self._ct[at] == ct) & (ct >= 0)
        mode, tokens, entry = np.where(known, self._kept[:, at], _UNKNOWN)
        return mode, tokens, entry

    def clear(self, rank: int) -> None:
        """Forget a rank."""
        self._ct[rank * self.size : (rank + 1) * self.size] = -1


@dataclass(frozen=True, slots=True)
class Lengths:
    """Steps whose length is known now; ``start`` to ``end`` in ns."""

    rank: I64
    mode: I64
    start: I64
    end: I64


NO_LENGTHS = Lengths(EMPTY, EMPTY, EMPTY, EMPTY)


def rested(sources: AllSources, rank: I64, a: I64, b: I64) -> Bool:
    """Whether the loop was idle or paused at some time between ``a`` and ``b``."""
    idle = sources.only("idle", int(a.min()), int(b.max()))
    begun = np.searchsorted(idle.t0, shifted(b, rank), "left")
    return np.asarray(np.searchsorted(idle.t1, shifted(a, rank), "right") < begun)


class ResultLengths:
    """Measures steps from the result before to their own result; from their entry where the loop rested in between.

    Under overlap a step's result comes one turn after its launch, so the time from entry to entry would charge a
    slow prefill to the decode step that is launched behind it. Results follow the order of the GPU.
    """

    def __init__(self) -> None:
        self._ct = np.full(MAX_RANKS, -2, np.int64)
        self._t = np.zeros(MAX_RANKS, np.int64)

    def clear(self, rank: int) -> None:
        """Forget a rank."""
        self._ct[rank] = -2

    def add(self, rank: I64, ct: I64, t: I64, recent: Recent, sources: AllSources) -> Lengths:
        """Next results: ``forward_ct`` and time (ns)."""
        mode, _, entry = recent.find(rank, ct)
        first = firsts(rank)
        owner, last = rank[first], lasts(rank, first)
        before_ct = before(ct, first, self._ct[owner])
        before_t = before(t, first, self._t[owner])
        self._ct[owner], self._t[owner] = ct[last], t[last]
        follows = ct == before_ct + 1
        if follows.any():
            # under overlap the entry lies before the result of the step before: nothing to look for
            after = follows & (entry > before_t)
            if after.any():
                follows[after] = ~rested(sources, rank[after], before_t[after], entry[after])
        start = np.where(follows, before_t, entry)
        ok = (mode >= 0) & (t >= start)
        return Lengths(rank[ok], mode[ok], start[ok], t[ok])


class EntryLengths:
    """Measures the steps of one rank from entry to entry, where the event loop shows no results; else from entry to
    return. The latest step waits for its successor or for the first idle moment after it.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ct = self._mode = self._t0 = self._t1 = EMPTY

    def add(self, steps: Batch | None, sources: AllSources) -> Lengths:
        """Next steps (or none), in order."""
        if steps is not None and len(steps):
            self._ct = np.concatenate([self._ct, steps["ct"]])
            self._mode = np.concatenate([self._mode, mode_numbers(steps["mode"])])
            self._t0 = np.concatenate([self._t0, steps["t0"]])
            self._t1 = np.concatenate([self._t1, steps["t1"]])
        if not len(self._ct):
            return NO_LENGTHS
        ct, mode, t0, t1 = self._ct, self._mode, self._t0, self._t1
        rank = np.full(len(ct), self._rank, np.int64)
        end = t1[:-1]
        if len(ct) > 1:
            waited = ~rested(sources, rank[1:], t1[:-1], t0[1:]) & (ct[1:] == ct[:-1] + 1)
            end = np.where(waited, t0[1:], t1[:-1])
        done = len(ct) - 1
        if sources.mark("idle", self._rank) > int(t1[-1]):
            done, end = done + 1, np.concatenate([end, t1[-1:]])
        self._ct, self._mode, self._t0, self._t1 = ct[done:], mode[done:], t0[done:], t1[done:]
        return Lengths(rank[:done], mode[:done], t0[:done], end)


class GpuOfStep:
    """Sums the GPU time of the forwards of a step (target and draft)."""

    def __init__(self) -> None:
        self._rank = self._ct = self._ns = EMPTY
        self._quiet = np.zeros(MAX_RANKS, np.int64)

    def clear(self, rank: int) -> None:
        """Forget a rank."""
        keep = self._rank != rank
        self._rank, self._ct, self._ns = self._rank[keep], self._ct[keep], self._ns[keep]

    def add(self, rank: I64, ct: I64, ns: I64) -> tuple[I64, I64, I64]:
        """Next forwards with known GPU time, in order.

        Returns:
            ``(rank, ct, ns)`` of steps that are complete: a later step has begun, or two ticks brought no more of it.
        """
        self._quiet += 1
        self._quiet[rank] = 0
        if len(self._rank):
            rank, ct, ns = (
                np.concatenate([old, new]) for old, new in ((self._rank, rank), (self._ct, ct), (self._ns, ns))
            )
            order = np.argsort(rank.astype(np.uint8), kind="stable")
            rank, ct, ns = rank[order], ct[order], ns[order]
        if not len(rank):
            return EMPTY, EMPTY, EMPTY
        begins = np.flatnonzero(np.concatenate([[True], (ct[1:] != ct[:-1]) | (rank[1:] != rank[:-1])]))
        sums, owner = np.add.reduceat(ns, begins), rank[begins]
        open_ = np.concatenate([owner[1:] != owner[:-1], [True]]) & (self._quiet[owner] < 2)
        keep = np.repeat(open_, np.diff(np.append(begins, len(rank))))
        self._rank, self._ct, self._ns = rank[keep], ct[keep], ns[keep]
        done = ~open_
        return owner[done], ct[begins][done], sums[done]
