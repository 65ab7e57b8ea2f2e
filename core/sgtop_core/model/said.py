"""What the ranks said of themselves in their hellos, as arrays: one look-up serves the rows of all ranks."""

from __future__ import annotations

import numpy as np

from sgtop_core.model.axis import MAX_RANKS
from sgtop_core.model.causes import NO_WORK, PAUSED, Names
from sgtop_core.model.rank import BUSY, MAX_STAGES, RankState
from sgtop_core.model.steps import MODES
from sgtop_core.model.strip import Strip
from sgtop_core.model.time_bank import TimeBank

GRAPHED = {"DECODE": "decode", "TARGET_VERIFY": "verify"}
"""Modes whose forwards replay a CUDA graph on a healthy server → key of ``hello.graph``."""


class Said:
    """All arrays begin with the rank's number."""

    def __init__(self, names: Names, stage_ns: TimeBank[str], strip: Strip) -> None:
        self._names, self._stage_ns, self._strip = names, stage_ns, strip
        self.stages = np.zeros(MAX_RANKS, np.int64)
        """How many stages it has."""
        self.stage_row = np.zeros((MAX_RANKS, MAX_STAGES), np.int64)
        """Row of the bank of stages."""
        self.stage_cause = np.zeros((MAX_RANKS, MAX_STAGES), np.int64)
        self.stage_cell = np.zeros((MAX_RANKS, MAX_STAGES), np.int64)
        """Kind of cell of an idle stage."""
        self.stage_idle = np.zeros((MAX_RANKS, MAX_STAGES), np.bool_)
        """Idle or paused."""
        self.cells = np.zeros((MAX_RANKS, 2, MODES), np.int64)
        """Kind of cell by whether eager, and mode."""
        self.busy_row = np.zeros((MAX_RANKS, MODES), np.int64)
        """Row of the bank of stages for the time in forwards of a mode."""
        self.graphless = np.zeros((MAX_RANKS, 2, MODES), np.bool_)
        """By whether of a draft model, and mode: no graph was captured, so nothing of it runs eager instead."""
        self.on_gpu = np.zeros(MAX_RANKS, np.bool_)
        """Its forwards are timed on the GPU."""
        self.no_forwards = np.zeros(MAX_RANKS, np.bool_)
        """It sends no table of forwards."""

    def hello(self, state: RankState) -> None:
        """A rank begins anew; its number is clear."""
        i, about = state.index, state.about
        for k, name in enumerate(about.stages):
            self.stage_row[i, k] = self._stage_ns.row(i, name)
            self.stage_cause[i, k] = self._names.code({"idle": NO_WORK, "paused": PAUSED}.get(name, name))
            self.stage_idle[i, k] = name in ("idle", "paused")
            self.stage_cell[i, k] = self._strip.code("paused" if name == "paused" else "idle")
        self.stages[i] = len(about.stages)
        self.busy_row[i] = self._stage_ns.row(i, f"{BUSY}{MODES - 1}")  # modes that the hello does not name
        self.graphless[i, 1] = about.graph.get("draft") is False
        for number in (*about.mode_names, MODES - 1):
            if 0 <= number < MODES:
                name = state.mode_name(number)
                eager = bool(about.graph.get(GRAPHED.get(name, "")))
                self.graphless[i, 0, number] = about.graph.get(GRAPHED.get(name, "prefill")) is False
                self.busy_row[i, number] = self._stage_ns.row(i, f"{BUSY}{number}")
                self.cells[i, :, number] = self._strip.code(name), self._strip.code(name, eager)
        self.on_gpu[i] = state.label == "gpu"
        self.no_forwards[i] = "forward" not in about.caps

    def clear(self, i: int) -> None:
        """Make number ``i`` free of whoever had it."""
        self.cells[i] = self.stage_cell[i] = 0
        self.graphless[i] = False
