"""What a stretch of steps was like: the figures that are compared before and after a flip, and between A and B.

A stretch is given by steps, not by time: a flip takes effect at a step, so every step belongs to one side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sgtop_agent.wire import Frame

from sgtop_core.model.arrays import I64
from sgtop_core.model.events import batch

STEP = ("ct", "mode", "t0", "t1", "tokens", "decode_tokens", "cached", "graph")
_CT, _MODE, _T0, _T1, _TOKENS, _DECODE, _CACHED, _GRAPH = range(len(STEP))
KEEP_S = 60.0
MOST_ROWS = 400_000
MOST_FRAMES = 20_000


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a stretch; None where there was nothing to measure."""

    steps: int
    seconds: float
    step_ms: float | None
    """Median from the entry of a decode step to that of the next, ms."""
    tokens_per_s: float | None
    """Tokens made a second."""
    gap_ms: float | None
    """Median time between decode steps, ms: from the end of one forward on the GPU to the start of the next where the
    agent times the GPU, else from the return of ``run_batch`` to its next entry on the main thread."""
    hit_ratio: float | None
    """Cached ÷ (cached + computed) prompt tokens of requests that began."""
    graph_share: float | None = None
    """Share of decode steps that replayed a CUDA graph."""


NOTHING = Figures(0, 0.0, None, None, None, None)


class StepLog:
    """The steps of one rank as they arrive; one thread adds, any thread asks for figures of a stretch."""

    def __init__(self, modes: Mapping[str, int], keep_s: float = KEEP_S) -> None:
        """``modes``: the hello's; ``keep_s``: seconds of steps that are kept."""
        self._keep_ns = int(keep_s * 1e9)
        self._decode = modes.get("DECODE", -1)
        self._extend = {modes[m] for m in ("EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND") if m in modes}
        self._steps: deque[I64] = deque()
        self._gpu: deque[I64] = deque()
        self._accepted: deque[I64] = deque()
        self._rows = 0

    def frame(self, frame: Frame) -> None:
        """Take an ``ev`` frame; tables that do not matter are passed over."""
        table = frame.get("e")
        if table == "step":
            if not self._add(self._steps, frame, STEP):
                return
            self._rows += len(self._steps[-1])
            while self._rows > MOST_ROWS or self._steps[-1][-1, _T0] - self._steps[0][0, _T0] > self._keep_ns:
                self._rows -= len(self._steps.popleft())
        elif table == "forward":
            self._add(self._gpu, frame, ("ct", "runner", "gpu0", "gpu1"))
        elif table == "result":
            self._add(self._accepted, frame, ("ct", "accepted"))

    @staticmethod
    def _add(to: deque[I64], frame: Frame, names: tuple[str, ...]) -> bool:
        columns: Mapping[str, Any] = batch(frame).columns
        rows = np.stack([columns[name] for name in names], axis=1)
        if not len(rows):
            return False
        to.append(rows)
        while len(to) > MOST_FRAMES:
            to.popleft()
        return True

    def last(self) -> int | None:
        """The last step that has arrived."""
        return int(self._steps[-1][-1, _CT]) if self._steps else None

    def stretch(self, first: int, end: int | None = None, *, since: int = 0, until: int | None = None) -> Figures:
        """Figures of the steps ``first`` ≤ forward_ct < ``end`` that began in [``since``, ``until``) ns."""
        rows = _rows(list(self._steps), first, end, len(STEP))
        keep = rows[:, _T0] >= since
        if until is not None:
            keep &= rows[:, _T0] < until
        rows = rows[keep]
        if len(rows) < 2:
            return NOTHING
        seconds = float(rows[-1, _T0] - rows[0, _T0]) / 1e9
        low, high = int(rows[0, _CT]), int(rows[-1, _CT]) + 1
        decode = rows[:, _MODE] == self._decode
        both = decode[1:] & decode[:-1] & (np.diff(rows[:, _CT]) == 1)
        length = np.diff(rows[:, _T0])[both]
        gaps = self._gpu_gaps(low, high, rows[decode])
        if gaps is None:
            gaps = (rows[1:, _T0] - rows[:-1, _T1])[both]
        prompt = np.isin(rows[:, _MODE], list(self._extend))
        cached = int(rows[prompt, _CACHED].clip(min=0).sum())
        computed = int((rows[prompt, _TOKENS] - rows[prompt, _DECODE].clip(min=0)).clip(min=0).sum())
        graph = rows[decode, _GRAPH]
        graph = graph[graph >= 0]
        made = self._made(low, high, rows[:-1])
        return Figures(
            steps=len(rows),
            seconds=seconds,
            step_ms=_median_ms(length),
            tokens_per_s=made / seconds if seconds > 0 else None,
            gap_ms=_median_ms(gaps),
            hit_ratio=cached / (cached + computed) if cached + computed else None,
            graph_share=float(graph.mean()) if len(graph) else None,
        )

    def _made(self, low: int, high: int, rows: I64) -> int:
        accepted = _rows(list(self._accepted), low, high - 1, 2)
        accepted = accepted[accepted[:, 1] >= 0]
        if len(accepted):
            return int(accepted[:, 1].sum())
        return int(rows[:, _DECODE].clip(min=0).sum())

    def _gpu_gaps(self, low: int, high: int, decodes: I64) -> I64 | None:
        rows = _rows(list(self._gpu), low, high, 4)
        rows = rows[(rows[:, 1] == 0) & (rows[:, 2] > 0) & (rows[:, 3] > 0) & np.isin(rows[:, 0], decodes[:, _CT])]
        if len(rows) < 2:
            return None
        near = np.diff(rows[:, 0]) == 1
        gaps: I64 = (rows[1:, 2] - rows[:-1, 3])[near].clip(min=0)
        return gaps if len(gaps) else None

    def graph_flags(self, first: int, end: int) -> dict[int, int]:
        """forward_ct → whether its decode step replayed a graph (1), ran eager (0), or it is not known (-1)."""
        rows = _rows(list(self._steps), first, end, len(STEP))
        rows = rows[rows[:, _MODE] == self._decode]
        return {int(ct): int(graph) for ct, graph in rows[:, [_CT, _GRAPH]]}

    def began(self, ct: int) -> int | None:
        """When step ``ct`` began, ns; None while it has not arrived."""
        rows = _rows(list(self._steps), ct, ct + 1, len(STEP))
        return int(rows[0, _T0]) if len(rows) else None


def _rows(parts: list[I64], first: int, end: int | None, width: int) -> I64:
    """Rows of ``parts`` (first column: forward_ct) with first ≤ ct < end."""
    near = [p for p in parts if p[-1, 0] >= first and (end is None or p[0, 0] < end)]
    if not near:
        return np.empty((0, width), np.int64)
    rows = np.concatenate(near)
    keep = rows[:, 0] >= first
    if end is not None:
        keep &= rows[:, 0] < end
    return rows[keep]


def _median_ms(ns: I64) -> float | None:
    return float(np.median(ns)) / 1e6 if len(ns) else None
