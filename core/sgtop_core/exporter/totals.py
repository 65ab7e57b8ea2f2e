"""Counts since attaching, from the frames themselves: what a snapshot's windows cannot give a Prometheus counter."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sgtop_agent.wire import STAGES, Frame

I64 = npt.NDArray[np.int64]
MAX_MODE = 64

BUCKETS_S: tuple[float, ...] = (
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper edges of the histograms: 0.1 ms to 10 s, three a decade."""
_EDGES_NS = np.array(BUCKETS_S) * 1e9


@dataclass(slots=True)
class Histogram:
    """A Prometheus histogram: counts by bucket (the last one is +Inf) and the sum in seconds."""

    counts: I64 = field(default_factory=lambda: np.zeros(len(BUCKETS_S) + 1, np.int64))
    sum_s: float = 0.0

    def add(self, ns: I64) -> None:
        """Add durations."""
        self.counts += np.bincount(np.searchsorted(_EDGES_NS, ns), minlength=len(self.counts))
        self.sum_s += float(ns.sum()) / 1e9

    def cumulative(self) -> list[tuple[str, float]]:
        """(``le``, count of all up to it), as prometheus-client wants them."""
        les = (*(f"{b:g}" for b in BUCKETS_S), "+Inf")
        return [(le, float(n)) for le, n in zip(les, np.cumsum(self.counts).tolist(), strict=True)]


@dataclass(slots=True)
class RankTotals:
    """Counts of one rank, by mode number where a mode has a part in it."""

    hello: Mapping[str, Any] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    tokens: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    graph: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    eager: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    cached: int = 0
    accepted: int = 0
    finished: int | None = None
    """None until an agent tells it."""
    run_batch: dict[int, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    gpu: dict[tuple[int, int], Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """(runner, mode) → GPU time of its forwards."""
    stage_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    gc_n: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    gc_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def mode_name(self, number: int) -> str:
        """SGLang's name of a mode."""
        modes = self.hello.get("modes")
        names = {v: str(k) for k, v in modes.items()} if isinstance(modes, Mapping) else {}
        return names.get(number, "UNKNOWN")

    def stage_name(self, index: int) -> str:
        """SGLang's name of a stage."""
        stages = self.hello.get("stages") or STAGES
        return str(stages[index]) if 0 <= index < len(stages) else "unknown"


class Totals:
    """A tap, like the recorder: :meth:`tap` gets every frame that the session takes in."""

    def __init__(self) -> None:
        self.ranks: dict[str, RankTotals] = {}
        self._lock = threading.Lock()

    def tap(self, source: str, frame: Frame, mono_ns: int) -> None:
        """Count a frame. A frame that is not as it should be is left to the model, which says so."""
        kind = frame.get("k")
        if kind not in ("hello", "ev"):
            return
        with self._lock:
            rank = self.ranks.setdefault(source, RankTotals())
            if kind == "hello":
                rank.hello = frame
            else:
                _count(rank, frame)

    def read(self) -> dict[str, RankTotals]:
        """The totals; they go on counting while they are read, which a scrape does not mind."""
        with self._lock:
            return dict(self.ranks)


def _count(rank: RankTotals, frame: Frame) -> None:
    table, n, cols = frame.get("e"), frame.get("n"), frame.get("c")
    if not isinstance(n, int) or n <= 0 or not isinstance(cols, Mapping):
        return
    if any(len(v) != 8 * n for v in cols.values()):
        return

    def column(name: str) -> I64:
        raw = cols.get(name)
        if raw is None:
            return np.full(n, -1, np.int64)
        return np.frombuffer(raw, "<i8").astype(np.int64, copy=False)

    if table == "step":
        mode = np.clip(column("mode"), 0, MAX_MODE)
        tokens, graph, length = column("tokens"), column("graph"), column("t1") - column("t0")
        rank.cached += int(np.maximum(column("cached"), 0).sum())
        for m in np.unique(mode).tolist():
            of = mode == m
            rank.steps[m] += int(of.sum())
            rank.tokens[m] += int(np.maximum(tokens[of], 0).sum())
            rank.graph[m] += int((graph[of] == 1).sum())
            rank.eager[m] += int((graph[of] == 0).sum())
            rank.run_batch[m].add(np.maximum(length[of], 0))
    elif table == "forward":
        gpu0, gpu1 = column("gpu0"), column("gpu1")
        known = (gpu0 >= 0) & (gpu1 >= gpu0)
        key = np.clip(column("mode"), 0, MAX_MODE) * 2 + (column("runner") == 1)
        for k in np.unique(key[known]).tolist():
            of = known & (key == k)
            rank.gpu[k % 2, k // 2].add(gpu1[of] - gpu0[of])
    elif table == "stage":
        stage = np.clip(column("stage"), -1, MAX_MODE) + 1
        ns = np.bincount(stage, weights=np.maximum(column("t1") - column("t0"), 0))
        for i in np.flatnonzero(ns).tolist():
            rank.stage_s[i - 1] += float(ns[i]) / 1e9
    elif table == "gc":
        gen, ns = column("gen"), column("t1") - column("t0")
        for g in np.unique(gen).tolist():
            rank.gc_n[g] += int((gen == g).sum())
            rank.gc_s[g] += float(ns[gen == g].sum()) / 1e9
    elif table == "result":
        rank.accepted += int(np.maximum(column("accepted"), 0).sum())
        told = column("finished")
        if (told >= 0).any():
            rank.finished = (rank.finished or 0) + int(np.maximum(told, 0).sum())
