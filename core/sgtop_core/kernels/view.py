"""From sums to rows: the tables of a ``KernelView``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sgtop_core.model.arrays import F64, I64
from sgtop_core.model.bins import Durations, quantiles
from sgtop_core.model.histogram import Histogram
from sgtop_core.model.kernel_view import OUTSIDE, CopyRow, Kernel, KernelGaps, KernelMode

from .gaps import ALWAYS, CAUSES, GAP_EDGES_NS, GapBlock, gap_histogram
from .names import NameTable
from .table import Stats, deviations, medians, renumber

MAX_ROWS = 200
"""Rows of a mode's table; the rest is counted in ``KernelMode.hidden``."""


def _label(labels: Sequence[str], code: int) -> str:
    return OUTSIDE if code == 0 else labels[code]


def _same(addresses: Sequence[int], names: NameTable) -> I64:
    """Kernel number → the first number with the same full name; a name that is not known yet is its own."""
    first: dict[str, int] = {}
    out = []
    for number, address in enumerate(addresses):
        name = names.get(address)
        out.append(first.setdefault(name.full, number))
    return np.array(out, np.int64)


def tables(
    stats: Stats,
    labels: Sequence[str],
    forwards: Mapping[int, int],
    addresses: Sequence[int],
    names: NameTable,
) -> tuple[tuple[KernelMode, ...], tuple[CopyRow, ...], dict[str, float]]:
    """(a table a mode, copies, ms by category). Kernels of one name are one row, as in nsys, however often their module
    was loaded: Triton's have an address for each shape they were compiled for.
    """
    stats = renumber(stats, _same(addresses, names))
    code, kernel = stats.code, stats.kernel
    median, deviation = medians(stats), deviations(stats)
    modes = []
    categories: dict[str, float] = {}
    copies: dict[str, list[int]] = {}
    for c in sorted({int(x) for x in np.unique(code)}, key=lambda c: (c == 0, c)):
        at = np.flatnonzero(code == c)
        total = int(stats.total[at].sum())
        n = forwards.get(c, 0) if c else 0
        rows: list[Kernel] = []
        for i in at[np.argsort(-stats.total[at], kind="stable")]:
            name = names.get(addresses[int(kernel[i])])
            ms = float(stats.total[i]) / 1e6
            categories[name.category] = categories.get(name.category, 0.0) + ms
            if addresses[int(kernel[i])] < 0:
                sums = copies.setdefault(name.short, [0, 0, 0])
                for k, v in enumerate((stats.count[i], stats.bytes[i], stats.total[i])):
                    sums[k] += int(v)
            if len(rows) < MAX_ROWS:
                count = int(stats.count[i])
                rows.append(
                    Kernel(
                        name=name.short,
                        full_name=name.full,
                        category=name.category,
                        count=count,
                        total_ms=ms,
                        share=float(stats.total[i]) / total if total else 0.0,
                        avg_us=float(stats.total[i]) / count / 1e3,
                        med_us=float(median[i]) / 1e3,
                        min_us=float(stats.low[i]) / 1e3,
                        max_us=float(stats.high[i]) / 1e3,
                        stddev_us=0.0 if np.isnan(deviation[i]) else float(deviation[i]) / 1e3,
                        per_step=count / n if n else None,
                    )
                )
        launches = int(stats.count[at].sum())
        own = [i for i in at if addresses[int(kernel[i])] > 0]
        kernels = int(stats.count[own].sum())
        modes.append(
            KernelMode(
                mode=_label(labels, c),
                forwards=n,
                launches=launches,
                launches_per_step=launches / n if n else None,
                total_ms=total / 1e6,
                graph_share=int(stats.graph[own].sum()) / kernels if kernels else None,
                rows=tuple(rows),
                hidden=max(0, len(at) - MAX_ROWS),
            )
        )
    return (
        tuple(modes),
        tuple(
            CopyRow(kind, n, size, ns / 1e6, size / ns if ns else None)
            for kind, (n, size, ns) in sorted(copies.items(), key=lambda kv: -kv[1][2])
        ),
        dict(sorted(categories.items(), key=lambda kv: -kv[1])),
    )


def _row(mode: str, hist: I64, causes: F64, longest: int) -> KernelGaps:
    p50, p99 = quantiles(hist, Durations.middles(), (0.5, 0.99))
    return KernelGaps(
        mode=mode,
        count=int(hist.sum()),
        total_ms=float(causes.sum()) / 1e6,
        p50_us=None if p50 is None else p50 / 1e3,
        p99_us=None if p99 is None else p99 / 1e3,
        max_us=longest / 1e3,
        histogram=Histogram(tuple(e / 1e6 for e in GAP_EDGES_NS), tuple(int(x) for x in gap_histogram(hist))),
        causes_ms={
            name: float(v) / 1e6 for i, (name, v) in enumerate(zip(CAUSES, causes, strict=True)) if v or i < ALWAYS
        },
    )


def gap_rows(block: GapBlock, labels: Sequence[str]) -> tuple[tuple[KernelGaps, ...], KernelGaps | None]:
    """(a row a mode, all of them together)."""
    codes = sorted(block.hist, key=lambda c: (c == 0, c))
    if not codes:
        return (), None
    rows = tuple(_row(_label(labels, c), block.hist[c], block.causes[c], block.longest[c]) for c in codes)
    hist: I64 = np.sum([block.hist[c] for c in codes], axis=0)
    causes: F64 = np.sum([block.causes[c] for c in codes], axis=0)
    return rows, _row("", hist, causes, max(block.longest[c] for c in codes))
