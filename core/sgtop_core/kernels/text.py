"""Kernel tables as plain text in 80 columns, for ``sgtop --once``."""

from __future__ import annotations

from sgtop_core.model.kernel_view import KernelMode, KernelView

ROWS = 8
"""Kernels shown a mode."""


def _us(v: float) -> str:
    return f"{v:.1f}" if v < 1000 else f"{v:.0f}"


def _share(v: float | None) -> str:
    return "–" if v is None else f"{v:.0%}"


def lines(v: KernelView) -> list[str]:
    """State and the longest kernels of each mode; why there are none, where there are none."""
    if v.mode == "off" and not v.modes:
        return []
    if not v.modes:
        return [f"kernels: {v.reason or v.state}"]
    cost = "".join(f", {mode} ×{ratio:.3f}" for mode, ratio in v.inflation.items())
    out = [
        f"kernels: {v.traced_s:.1f} s traced, busy (union) {_share(v.busy_share)}, by events "
        f"{_share(v.event_busy_share)}, communication {_share(v.communication_share)}"
    ]
    if cost:
        out.append(f"  cost of tracing{cost}")
    if v.reason:
        out.append(f"  {v.reason}")
    if v.lost_buffers or v.untimed:
        out.append(f"  lost: {v.lost_buffers} buffers, {v.untimed} records without time")
    if v.cut:
        out.append(f"  left out: {v.cut} records of forwards that CUPTI told only in part")
    for mode in sorted(v.modes, key=lambda m: -m.total_ms):
        out += ["", *_table(mode)]
    if v.gaps:
        out.append("")
    for g in v.gaps:
        causes = ", ".join(f"{name} {share:.0%}" for name, share in g.shares())
        out.append(f"  gaps {g.mode}: {g.count}, {g.total_ms:.1f} ms; {causes}")
    return out


def _table(m: KernelMode) -> list[str]:
    a_step = "" if m.launches_per_step is None else f", {m.launches_per_step:.1f} launches a step"
    graphs = "" if m.graph_share is None else f", in graphs {m.graph_share:.0%}"
    out = [f"{m.mode}: {m.forwards} forwards{a_step}{graphs}"]
    out.append(f"{'time':>5}{'inst':>8}{'/step':>7}{'avg µs':>8}{'med':>7}{'max':>8}  name")
    for k in m.rows[:ROWS]:
        step = "–" if k.per_step is None else f"{k.per_step:.1f}"
        row = f"{k.share:>5.0%}{k.count:>8}{step:>7}{_us(k.avg_us):>8}{_us(k.med_us):>7}{_us(k.max_us):>8}  {k.name}"
        out.append(row if len(row) <= 80 else row[:79] + "…")
    return out
