"""Kernel tracing's figures in their places on a rank."""

from __future__ import annotations

from dataclasses import replace

from sgtop_core.model.kernel_view import KernelGaps, KernelView
from sgtop_core.model.snapshot import Quantiles, Rank, StepGaps


def _quantiles(g: KernelGaps) -> Quantiles:
    def ms(us: float | None) -> float | None:
        return None if us is None else us / 1e3

    return Quantiles(g.count, ms(g.p50_us), ms(g.p99_us), ms(g.max_us), g.total_ms)


def with_kernels(rank: Rank, view: KernelView) -> Rank:
    """``rank`` with the view, its tables by mode, and the gaps between its kernels."""
    gaps = None
    if view.all_gaps is not None:
        gaps = StepGaps(
            quantiles_ms=_quantiles(view.all_gaps),
            label="kernel",
            causes_ms=view.all_gaps.causes_ms,
            histogram=view.all_gaps.histogram,
            busy_share=view.busy_share,
            by_mode={g.mode: _quantiles(g) for g in view.gaps},
            histograms={g.mode: g.histogram for g in view.gaps},
            causes_by_mode_ms={g.mode: g.causes_ms for g in view.gaps},
        )
    tables = {m.mode: m.rows for m in view.modes}
    return replace(rank, tracing=view, kernel_gaps=gaps, kernels=tables if view.mode != "off" or tables else None)
