"""What a GPU's counters say of each forward mode: estimates, from how the modes shared the GPU in each reading.

The driver reads a GPU about once a second and knows nothing of modes. In that second the ranks on it spent some of the
GPU's time in each mode (agent's forwards). A mode's estimate is the mean over the readings of a window, each weighted
with the mode's GPU time in it. Counters that are 0 on an idle GPU (SM, tensor, DRAM, occupancy) are divided by the
share of the interval in which forwards ran; clocks, power and nvidia-smi's utilisation are taken as they are.

Modes that always run in the same second get the same figure; ``alone`` says how far that is so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from sgtop_core.model.snapshot import Gpu, GpuMode
from sgtop_core.model.windows import TICK_NS, WINDOWS

SCALED = ("sm_busy", "sm_occupancy", "tensor_busy", "dram_busy")
"""0 on an idle GPU."""
PLAIN = ("kernel_running", "power_w", "sm_clock_mhz")
LEAST_BUSY = 0.05
"""Readings of a GPU whose forwards filled less than this of the interval say nothing about a mode."""
USUAL_NS, LONGEST_NS = 1_000_000_000, 3_000_000_000
"""Length of a reading's interval where the one before is not known, and the longest that is believed."""


class GpuTimes(Protocol):
    """GPU time of a rank's forwards; ``Model`` gives one."""

    def gpu_ns(self, rank: str, a: int, b: int) -> Mapping[str, float] | None:
        """Ns by mode between ``a`` and ``b`` (ns); None where this rank's GPU times are not known."""


@dataclass(frozen=True, slots=True)
class _Sample:
    t: int
    weights: Mapping[str, float]
    """Mode → seconds of GPU time in the interval, all ranks on the GPU."""
    scaled: Mapping[str, float]
    plain: Mapping[str, float]


class GpuModes:
    """Keeps the readings of the longest window, by GPU."""

    def __init__(self) -> None:
        self._seen: Sequence[Gpu] | None = None
        self._waiting: list[tuple[Gpu, int]] = []
        """(reading, begin of its interval), until the forwards up to it are known"""
        self._last: dict[str, int] = {}
        self._samples: dict[str, deque[_Sample]] = {}
        self._views: dict[int, Mapping[str, Mapping[str, GpuMode]]] = {}

    def look(self, gpus: tuple[Gpu, ...], end: int, times: GpuTimes) -> None:
        """Take ``gpus`` where they are new; forwards are known up to ``end`` (ns). Once a tick."""
        if gpus is not self._seen:
            self._seen = gpus
            for g in gpus:
                if g.mono_ns is None:
                    continue
                before = self._last.get(g.uuid)
                self._last[g.uuid] = g.mono_ns
                if before == g.mono_ns:
                    continue
                near = before is not None and 0 < g.mono_ns - before <= LONGEST_NS
                self._waiting.append((g, before if near and before is not None else g.mono_ns - USUAL_NS))
        ready = [w for w in self._waiting if (w[0].mono_ns or 0) <= end]
        if ready or self._views:
            self._views = {}
        if not ready:
            return
        self._waiting = [w for w in self._waiting if (w[0].mono_ns or 0) > end]
        for g, begin in ready:
            sample = _sample(g, begin, times)
            kept = self._samples.setdefault(g.uuid, deque(maxlen=1024))
            if sample is not None:
                kept.append(sample)

    def view(self, gpus: tuple[Gpu, ...], level: int, end: int) -> tuple[Gpu, ...]:
        """The GPUs with their estimates for the window ``level`` that ends at ``end`` (ns)."""
        if not self._samples:
            return gpus
        found = self._views.get(level)
        if found is None:
            first = end - int(WINDOWS[level].seconds * 1e9)
            found = self._views[level] = {uuid: _estimate(kept, first) for uuid, kept in self._samples.items()}
        return tuple(replace(g, by_mode=found[g.uuid]) if found.get(g.uuid) else g for g in gpus)


def _sample(g: Gpu, begin: int, times: GpuTimes) -> _Sample | None:
    if g.mono_ns is None:
        return None
    weights: dict[str, float] = {}
    for label in g.ranks:
        spent = times.gpu_ns(label, begin, g.mono_ns)
        for mode, ns in (spent or {}).items():
            if ns < 1_000:
                continue
            weights[mode] = weights.get(mode, 0.0) + ns / 1e9
    busy = min(sum(weights.values()) / ((g.mono_ns - begin) / 1e9), 1.0)
    if busy < LEAST_BUSY:
        return None
    scaled = {f: min(float(v) / busy, 1.0) for f in SCALED if (v := getattr(g, f)) is not None}
    plain = {f: float(v) for f in PLAIN if (v := getattr(g, f)) is not None}
    return _Sample(g.mono_ns, weights, scaled, plain)


def _estimate(samples: Sequence[_Sample], first: int) -> Mapping[str, GpuMode]:
    kept = [s for s in samples if s.t > first]
    modes = sorted({m for s in kept for m in s.weights})
    return {m: _mode(kept, m) for m in modes}


def _mode(samples: Sequence[_Sample], mode: str) -> GpuMode:
    w = np.array([s.weights.get(mode, 0.0) for s in samples])
    whole = np.array([sum(s.weights.values()) for s in samples])
    total = float(w.sum())
    figures: dict[str, float] = {}
    for kind in ("scaled", "plain"):
        for f in SCALED if kind == "scaled" else PLAIN:
            v = np.array([getattr(s, kind).get(f, np.nan) for s in samples])
            known = ~np.isnan(v) & (w > 0)
            if known.any():
                figures[f] = float((w[known] * v[known]).sum() / w[known].sum())
    return GpuMode(gpu_s=total, alone=float((w * w / whole).sum() / total), **figures)


def share_of(slots: Sequence[int], newest: int, a: int, b: int) -> float:
    """What of amounts in ticks lies between ``a`` and ``b`` (ns); a tick that is cut counts by its part.

    ``slots``: amounts, oldest first; ``newest``: number of the last one's tick.
    """
    out = 0.0
    for k, amount in enumerate(slots):
        begin = (newest - len(slots) + 1 + k) * TICK_NS
        out += amount * max(min(b, begin + TICK_NS) - max(a, begin), 0) / TICK_NS
    return out
