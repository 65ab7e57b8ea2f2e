"""Steps in a row: how long each took, and what its forwards and its result add to it later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, Bool
from sgtop_core.model.causes import Sources
from sgtop_core.model.events import Batch

MODES = 64
"""Mode numbers from 0 to 62 are SGLang's; 63 stands for anything else."""


def mode_numbers(raw: I64) -> I64:
    """Mode numbers with everything outside of 0 to 62 as 63."""
    return np.where((raw >= 0) & (raw < MODES - 1), raw, MODES - 1)


_UNKNOWN = np.array([[-1], [0], [0]], np.int64)


class Recent:
    """The latest 16,384 steps by ``forward_ct``, for joins."""

    size = 1 << 14

    def __init__(self) -> None:
        self._ct = np.full(self.size, -1, np.int64)
        self._mode = np.zeros(self.size, np.int64)
        self._tokens = np.zeros(self.size, np.int64)
        self._entry = np.zeros(self.size, np.int64)

    def put(self, ct: I64, mode: I64, tokens: I64, entry: I64) -> None:
        """Remember steps; ``tokens`` as they were counted, ``entry`` of ``run_batch`` in ns."""
        at = ct % self.size
        self._ct[at], self._mode[at] = ct, mode
        self._tokens[at], self._entry[at] = tokens, entry

    def find(self, ct: I64) -> tuple[I64, I64, I64]:
        """(mode, tokens, entry) of each step; mode -1 where it is not known."""
        at = ct % self.size
        known = (self._ct[at] == ct) & (ct >= 0)
        return (
            np.where(known, self._mode[at], -1),
            np.where(known, self._tokens[at], 0),
            np.where(known, self._entry[at], 0),
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Steps whose length is known now; ``start`` to ``end`` in ns."""

    mode: I64
    start: I64
    end: I64


NO_LENGTHS = Lengths(EMPTY, EMPTY, EMPTY)


def _rested(sources: Sources, a: I64, b: I64) -> Bool:
    """Whether the loop was idle or paused at some time between ``a`` and ``b`` (each sorted)."""
    idle = sources.only("idle", int(a[0]), int(b[-1]))
    before = np.searchsorted(idle.t1, a, "right")
    return np.asarray(before < np.searchsorted(idle.t0, b, "left"))


class ResultLengths:
    """Measures steps from the result before to their own result; from their entry where the loop rested in between.

    Under overlap a step's result comes one turn after its launch, so the time from entry to entry would charge a
    slow prefill to the decode step that is launched behind it. Results follow the order of the GPU.
    """

    def __init__(self) -> None:
        self._ct = -1
        self._t = 0

    def add(self, ct: I64, t: I64, recent: Recent, sources: Sources) -> Lengths:
        """Next results: ``forward_ct`` and time (ns), in order."""
        mode, _, entry = recent.find(ct)
        before_ct = np.concatenate([[self._ct], ct[:-1]])
        before = np.concatenate([[self._t], t[:-1]])
        self._ct, self._t = int(ct[-1]), int(t[-1])
        follows = (ct == before_ct + 1) & ~_rested(sources, before, entry)
        start = np.where(follows, before, entry)
        ok = (mode >= 0) & (t >= start)
        return Lengths(mode[ok], start[ok], t[ok])


class EntryLengths:
    """Measures steps from entry to entry, where the event loop shows no results; else from entry to return.

    The latest step waits for its successor or for the first idle moment after it.
    """

    def __init__(self) -> None:
        self._ct = self._mode = self._t0 = self._t1 = EMPTY

    def add(self, steps: Batch | None, sources: Sources) -> Lengths:
        """Next steps (or none), in order."""
        if steps is not None:
            self._ct = np.concatenate([self._ct, steps["ct"]])
            self._mode = np.concatenate([self._mode, mode_numbers(steps["mode"])])
            self._t0 = np.concatenate([self._t0, steps["t0"]])
            self._t1 = np.concatenate([self._t1, steps["t1"]])
        if not len(self._ct):
            return NO_LENGTHS
        ct, mode, t0, t1 = self._ct, self._mode, self._t0, self._t1
        end = t1[:-1]
        if len(ct) > 1:
            waited = ~_rested(sources, t1[:-1], t0[1:]) & (ct[1:] == ct[:-1] + 1)
            end = np.where(waited, t0[1:], t1[:-1])
        done = len(ct) - 1
        if sources.mark("idle") > int(t1[-1]):
            done, end = done + 1, np.concatenate([end, t1[-1:]])
        self._ct, self._mode, self._t0, self._t1 = ct[done:], mode[done:], t0[done:], t1[done:]
        return Lengths(mode[:done], t0[:done], end)


class GpuOfStep:
    """Sums the GPU time of the forwards of a step (target and draft)."""

    def __init__(self) -> None:
        self._ct = self._ns = EMPTY
        self._quiet = 0

    def add(self, ct: I64, ns: I64) -> tuple[I64, I64]:
        """Next forwards with known GPU time, in order.

        Returns:
            ``(ct, ns)`` of steps that are complete: a later step has begun, or two ticks brought no more of it.
        """
        ok = ct >= 0
        ct, ns = np.concatenate([self._ct, ct[ok]]), np.concatenate([self._ns, ns[ok]])
        if not len(ct):
            return EMPTY, EMPTY
        first = np.flatnonzero(np.concatenate([[True], ct[1:] != ct[:-1]]))
        steps, sums = ct[first], np.add.reduceat(ns, first)
        self._quiet = self._quiet + 1 if not ok.any() else 0
        if self._quiet >= 2:
            self._ct = self._ns = EMPTY
            return steps, sums
        last = int(first[-1])
        self._ct, self._ns = ct[last:], ns[last:]
        return steps[:-1], sums[:-1]
