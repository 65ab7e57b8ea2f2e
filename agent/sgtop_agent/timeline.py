"""The main thread's time line: which stage it is in, and what it did, as pairs that cost one call each.

A mark is the pair (time, stage that begins then), so a stage lasts until the next mark and stages can neither
overlap nor leave a hole. Between the marks stand pairs (value, kind) that say which step began or ended, which
forward, which result: ``decode`` turns them into rows. All go to one flat list, because what a hook costs on a
machine that does other work in between is mostly the memory that it touches; each hook adds with one ``extend``,
which is atomic under the GIL; only the agent's thread takes from the list.

An idle scheduler may spin 50,000 times a second. While it does, its marks go to ``scratch``, which each idle
turn throws away; ``marks`` keeps the one mark that began the idle stage. The first turn that finds work puts
its scratch after it. A paused engine is treated alike, and so is a list that nobody empties: what does not fit
is thrown away and counted, and the mark HOLE says that the time until the next mark is not known.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

from .wire import STAGES

OTHER = STAGES.index("other")
IDLE = STAGES.index("idle")
PAUSED = STAGES.index("paused")
HOLE = -1

BUSY, QUIET_IDLE, QUIET_PAUSED, FULL = 0, 1, 2, 3
"""``quiet``: where marks go and why. BUSY: to ``marks``."""

# Kinds of pairs that are no marks. Their value is a number, never a time of the stage line.
KINDS = 16
"""Codes below this are stages."""
(
    STEP_DECODE,  # a decode batch begins to run: requests
    STEP_MODE,  # any other batch begins to run: its mode; four more pairs follow
    STEP_BS,
    STEP_TOKENS,
    STEP_DECODING,
    STEP_CACHED,
    STEP_GRAPH,  # its target forward: 1 graph, 0 eager (where no FORWARD pairs say it)
    STEP_END,  # run_batch returned: forward_ct
    STEP_RAISED,
    FORWARD,  # a forward begins: time
    FORWARD_EAGER,  # … returned: time
    FORWARD_GRAPH,
    FORWARD_UNKNOWN,
    ACCEPTED,  # of the result that follows: tokens
    RESULT,  # a result was processed: forward_ct
    SPENT,  # of the step that ends next: ns in hooks
) = range(KINDS, KINDS + 16)

CAPACITY = 192 * 1024
"""Values (two a pair): some 5 s of a scheduler at 1,000 steps/s, 8 MiB at most."""

mono = time.monotonic_ns


def _drop(mark: tuple[int, int]) -> None:
    return None


class Timeline:
    """Written by the main thread (``put``, ``begin_turn``, ``rest``, ``wake``), emptied by the agent's."""

    __slots__ = (
        "_carry",
        "_last",
        "cur",
        "inside_idle",
        "lost",
        "lost_steps",
        "marks",
        "measure",
        "put",
        "quiet",
        "scratch",
        "seen",
        "spent",
        "stopped",
    )

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.scratch: list[int] = []
        self.put: Any = self.marks.extend
        self.cur = OTHER
        self.quiet = BUSY
        self.inside_idle = False
        self.seen = 0
        """Time up to which the current idle or paused stage is known to last."""
        self.lost = 0
        """pairs that did not fit"""
        self.lost_steps = 0
        self.stopped = False
        self.measure = False
        """hooks measure themselves until the next step ends"""
        self.spent = 0
        """ns in hooks in the turn that is measured"""
        self._carry: tuple[int, int] | None = None
        self._last = 0

    # --- main thread -----------------------------------------------------------------------------

    def begin_turn(self, paused: bool) -> None:
        """A turn of the event loop begins. Called where it receives requests."""
        self.cur = OTHER
        quiet = self.quiet
        if self.stopped:
            return
        if quiet == BUSY:
            if paused:
                self.marks.extend((mono(), PAUSED))
                self._divert(QUIET_PAUSED)
            elif len(self.marks) > CAPACITY:
                self.marks.extend((mono(), HOLE))
                self._divert(FULL)
        elif quiet == FULL:
            codes = self.scratch[1::2]
            self.lost += len(codes)
            self.lost_steps += codes.count(STEP_END)
            self.scratch.clear()
            if len(self.marks) < CAPACITY // 2:
                self._busy()
        elif quiet == QUIET_PAUSED:
            if paused:
                self.scratch.clear()
                self.seen = mono()
            else:
                self.wake()
        elif paused:
            self.scratch.clear()
            self.marks.extend((mono(), PAUSED))
            self._divert(QUIET_PAUSED)

    def rest(self) -> None:
        """A turn ends idle: forget its marks, the idle stage goes on."""
        quiet = self.quiet
        if quiet == QUIET_IDLE:
            self.scratch.clear()
        elif quiet == BUSY:
            self._divert(QUIET_IDLE)
        self.seen = mono()

    def wake(self) -> None:
        """Work was found: the marks of this turn count, unless there is no room."""
        if not self.stopped and self.quiet != FULL:
            self.marks.extend(self.scratch)
            self._busy()

    def _busy(self) -> None:
        self.scratch.clear()
        self.quiet = BUSY
        self.put = self.marks.extend

    def _divert(self, why: int) -> None:
        if self.stopped:
            return
        self.scratch.clear()
        self.put = self.scratch.extend
        self.seen = mono()
        self.quiet = why

    def stop(self) -> None:
        """No more marks; any thread."""
        self.stopped = True
        self.put = _drop

    # --- agent's thread --------------------------------------------------------------------------

    def take(self, most: int = 2048) -> tuple[list[int], list[int]]:
        """Take up to ``most`` pairs: values, codes."""
        marks = self.marks
        chunk = marks[: 2 * most]
        del marks[: len(chunk)]
        return chunk[0::2], chunk[1::2]

    def segments(self, times: array[int], stages: array[int], now: int) -> tuple[array[int], array[int], array[int]]:
        """Columns stage, t0, t1 of the segments that end with these marks.

        An idle or paused stage that still lasts is given piece by piece, up to the time it is known to last.
        ``now`` must have been read before the marks were taken.
        """
        carry = self._carry
        t0, stage = array("q"), array("q")
        if carry is not None:
            t0.append(carry[0])
            stage.append(carry[1])
        t0.extend(times)
        stage.extend(stages)
        if not t0:
            return stage, t0, array("q")
        last = self._last
        for i in range(min(2, len(t0))):  # an open idle piece may have been given up to a later time
            if t0[i] < last:
                t0[i] = last
        t1 = t0[1:]
        open_t, open_stage = t0.pop(), stage.pop()
        if not self.marks and self.quiet in (QUIET_IDLE, QUIET_PAUSED) and open_stage in (IDLE, PAUSED):
            until = now if self.inside_idle else self.seen
            if until > open_t:
                t0.append(open_t)
                t1.append(until)
                stage.append(open_stage)
                open_t = until
        self._carry = (open_t, open_stage)
        self._last = open_t
        if HOLE in stage:
            keep = [i for i, s in enumerate(stage) if s != HOLE]
            stage, t0, t1 = (array("q", [c[i] for i in keep]) for c in (stage, t0, t1))
        return stage, t0, t1
