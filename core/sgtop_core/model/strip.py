"""The mode strip: what each rank did in each slice of time.

Cells of 80 ms, and of 6 and 60 times that for the longer windows. A cell shows what took most of it among forwards
of the target model, ``idle`` and ``paused``; where none of these was there it shows the step (or draft forward) that
was under way, and where nothing is known it is None.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import I64, split
from sgtop_core.model.axis import MAX_RANKS
from sgtop_core.model.snapshot import Cell

CELL_NS = 80_000_000
CELLS = 128
_SCALES = (1, 6, 60)
_MAX_CODES = 64
_MANY = 96
"""Portions of spans that are kept; three come a tick, and the shortest strip shows 40 ticks."""

UNKNOWN = Cell(None)


def cell_s(level: int) -> float:
    """Width of a cell in a window, seconds."""
    return CELL_NS * _SCALES[level] / 1e9


class Strip:
    """Cells of all ranks in all windows."""

    def __init__(self) -> None:
        self._codes: dict[Cell, int] = {}
        self._cells: list[Cell] = [UNKNOWN]
        self._ranks = 8
        # [rank, certain or under way, cell, code] ns
        self._ns = [np.zeros((self._ranks, 2, CELLS, 8), np.int64) for _ in _SCALES]
        self._head = [-1] * len(_SCALES)
        self._spans: list[tuple[I64, I64, I64, I64]] = []
        """(2 × rank + whether under way, code, start, end): cells are worked out when a window is read."""
        self._done = [0] * len(_SCALES)
        self._shown: dict[int, list[list[int]]] = {}
        """Scale → kind of every cell of every rank, oldest first, as worked out since the last change."""

    def code(self, mode: str, eager: bool = False) -> int:
        """Number of a kind of cell, for ``add``."""
        cell = Cell(mode, eager)
        c = self._codes.get(cell)
        if c is None:
            if len(self._cells) == _MAX_CODES:  # names come from the server's enum; more than this is garbage
                return _MAX_CODES - 1
            c = self._codes[cell] = len(self._cells)
            self._cells.append(cell)
            if c >= self._ns[0].shape[3]:
                self._ns = [np.concatenate([a, np.zeros_like(a)], axis=3) for a in self._ns]
        return c

    def clear(self, rank: int) -> None:
        """Forget a rank, and make room for it where it is new."""
        self._settle_all()
        self._shown.clear()
        while rank >= self._ranks:
            self._ranks = min(2 * self._ranks, MAX_RANKS)
            self._ns = [np.concatenate([a, np.zeros_like(a)])[: self._ranks] for a in self._ns]
        for a in self._ns:
            a[rank] = 0

    def advance(self, end: int) -> None:
        """Move to the cell that holds the last ns before ``end``."""
        self._shown.clear()
        for i, scale in enumerate(_SCALES):
            head = (end - 1) // (CELL_NS * scale)
            steps = CELLS if self._head[i] < 0 else min(head - self._head[i], CELLS)
            if steps > 0:
                self._ns[i][:, :, np.arange(head - steps + 1, head + 1) % CELLS] = 0
                self._head[i] = head

    def add(self, rank: I64, code: I64, t0: I64, t1: I64, certain: bool = True) -> None:
        """Add spans (ns) of the kinds ``code``; ``certain`` False: a step was under way."""
        if len(code):
            self._shown.clear()
            self._spans.append((2 * rank + (0 if certain else 1), code, t0, t1))
            if len(self._spans) >= _MANY:
                self._settle_all()

    def _settle_all(self) -> None:
        for i in range(len(_SCALES)):
            self._settle(i)
        self._spans.clear()
        self._done = [0] * len(_SCALES)

    def _settle(self, i: int) -> None:
        todo = self._spans[self._done[i] :]
        self._done[i] = len(self._spans)
        if not todo:
            return
        row, code, t0, t1 = (np.concatenate([s[k] for s in todo]) for k in range(4))
        which, cell, a, b = split(t0, t1, CELL_NS * _SCALES[i])
        ok = (cell > self._head[i] - CELLS) & (cell <= self._head[i])
        width = self._ns[i].shape[3]
        flat = ((row[which] * CELLS + cell % CELLS) * width + code[which])[ok]
        np.add.at(self._ns[i].reshape(-1), flat, (b - a)[ok])

    def read(self, level: int, rank: int) -> tuple[Cell, ...]:
        """Cells of a rank, oldest first."""
        kinds = self._shown.get(level)
        if kinds is None:
            self._settle(level)
            order = np.arange(self._head[level] - CELLS + 1, self._head[level] + 1) % CELLS
            sure, step = self._ns[level][:, 0], self._ns[level][:, 1]
            under_way = np.where(step.any(axis=2), step.argmax(axis=2), 0)
            top = np.where(sure.any(axis=2), sure.argmax(axis=2), under_way)
            kinds = self._shown[level] = top[:, order].tolist()
        return tuple([self._cells[c] for c in kinds[rank]])


@dataclass(frozen=True, slots=True)
class RankStrip:
    """One rank's part of a Strip, for reading."""

    all: Strip
    rank: int

    def read(self, level: int) -> tuple[Cell, ...]:
        """See Strip."""
        return self.all.read(level, self.rank)
