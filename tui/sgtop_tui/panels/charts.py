"""Small charts of block glyphs: a stacked list of shares and a log-scaled histogram. Pure text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sgtop_core.model.snapshot import Histogram

from .. import fmt
from ..lines import Line, Pen, clip

SHADES = " ▁▂▃▄▅▆▇█"


def edge_label(edge_ms: float) -> str:
    """A bucket's bound: ``300ns``, ``10µs``, ``300µs``, ``3ms``, ``1s``."""
    if edge_ms < 0.9995e-3:  # between kernels of a graph the GPU idles for less than a microsecond
        return f"{edge_ms * 1e6:.0f}ns"
    if edge_ms < 0.9995:
        return f"{edge_ms * 1e3:.0f}µs"
    if edge_ms < 999.5:
        return f"{edge_ms:.0f}ms"
    return f"{edge_ms / 1e3:.0f}s"


def rebin(histogram: Histogram, most: int) -> list[tuple[float, int]]:
    """(upper bound in ms, count) on a 1-3-10 scale, at most ``most`` buckets, empty ends cut off.

    A bucket of the source goes where its geometric middle lies, so no count is split or lost.
    """
    bounds: dict[int, int] = {}
    for i, n in enumerate(histogram.counts):
        low, high = histogram.edges_ms[i], histogram.edges_ms[i + 1]
        if n <= 0:
            continue
        middle = low * 1.01 if math.isinf(high) else math.sqrt(low * high) if low > 0 else high / 2
        # Index k stands for the upper bound 10^(k/2) rounded to 1-3-10.
        k = math.ceil(2 * math.log10(max(middle, 1e-6)) - 1e-9)
        bounds[k] = bounds.get(k, 0) + n
    if not bounds:
        return []
    first, last = min(bounds), max(bounds)
    while last - first + 1 > most:
        # Too many: fold the smallest gaps together, which nobody acts on.
        bounds[first + 1] = bounds.get(first + 1, 0) + bounds.pop(first, 0)
        first += 1
    return [(10 ** (k // 2) * (3 if k % 2 else 1), bounds.get(k, 0)) for k in range(first, last + 1)]


def histogram_line(bins: Sequence[tuple[float, int]], width: int) -> Line:
    """One line: ``<10µs ▂ 30 ▃ 100 ▅ 300 ▂ 1ms …``; a unit stands where it changes."""
    top = max((n for _, n in bins), default=0)
    pen = Pen()
    unit = ""
    for i, (edge, n) in enumerate(bins):
        text = edge_label(edge)
        number, own = text.rstrip("nµms"), text.lstrip("0123456789")
        label = ("<" if i == 0 else "") + (number if own == unit else text) + " "
        unit = own
        if pen.width + len(label) + 3 > width:
            break
        pen.put(label, "dim").put(_shade(n, top), "bar").put(" ")
    return pen.line()


def _shade(n: int, top: int) -> str:
    if n <= 0 or top <= 0:
        return " "
    return SHADES[max(1, min(8, round(n / top * 8)))]


def histogram_block(bins: Sequence[tuple[float, int]], width: int, height: int) -> list[Line]:
    """``height`` lines: bars, and their upper bounds below. Needs a height of at least 2."""
    if not bins:
        return []
    cell = max(7, min(9, width // len(bins)))
    bins = bins[-max(1, width // cell) :]
    top = max(n for _, n in bins)
    rows = height - 1
    out: list[Line] = []
    for row in range(rows):
        floor = rows - 1 - row
        pen = Pen()
        for _, n in bins:
            level = n / top * rows * 8 - floor * 8 if top else 0
            full = max(0, min(8, round(level)))
            if n > 0 and floor == 0:
                full = max(1, full)
            pen.put(SHADES[full] * (cell - 1), "bar").put(" ")
        out.append(pen.line())
    pen = Pen()
    for i, (edge, _) in enumerate(bins):
        pen.cell(("<" if i == 0 else "≤") + edge_label(edge), cell - 1, "dim", left=True).put(" ")
    out.append(pen.line())
    return out


def shares_line(items: Sequence[tuple[str, float, str]], width: int) -> Line:
    """One line of (name, share 0–1, style) with small bars; what does not fit is summed as ``rest``."""
    pen = Pen(1)
    shown = 0.0
    for i, (name, share, style) in enumerate(items):
        part = Pen().put(name + " ", "dim" if style == "quiet" else "")
        part.put(fmt.bar(share, 16), style).put(f" {fmt.percent(share)}  ", "figure" if style != "quiet" else "dim")
        tail = 11 if i < len(items) - 1 else 0
        if pen.width + part.width + tail > width:
            rest = sum(s for _, s, _ in items) - shown
            if pen.width + 10 <= width and rest > 0.0005:
                pen.put("rest ", "dim").put(fmt.percent(rest), "dim")
            break
        for text, part_style in part.parts:
            pen.put(text, part_style)
        shown += share
    return pen.line()


def shares_list(items: Sequence[tuple[str, float, str, str]], width: int, height: int) -> list[Line]:
    """A line each of (name, share 0–1, figure in words, style); the last line sums what does not fit.

    It names the largest of it, if that is more than the last line that fits.
    """
    items = list(items)
    if len(items) > height > 0:
        kept = items[: height - 1]
        rest = items[height - 1 :]
        largest = max(rest, key=lambda item: item[1])
        hidden = not kept or largest[1] > kept[-1][1]  # what comes last by its nature may be most of it
        words = f"{len(rest)} more, {largest[0]} {fmt.percent(largest[1])}" if hidden else f"{len(rest)} more"
        kept.append((words, sum(s for _, s, _, _ in rest), "", "quiet"))
        items = kept
    name_width = min(28, max((len(name) for name, _, _, _ in items), default=0))
    figure_width = max((len(f) for _, _, f, _ in items), default=0)
    room = max(4, width - name_width - figure_width - 12)
    out: list[Line] = []
    for name, share, text, style in items:
        pen = Pen(1).cell(clip(name, name_width), name_width, "dim" if style == "quiet" else "", left=True).gap(1)
        pen.cell(fmt.percent(share), 5, "dim" if style == "quiet" else "figure").gap(1)
        pen.put(fmt.bar(share, min(room, 60)), style)
        if text:
            pen.right(((text, "dim"),), width - 1)
        out.append(pen.line())
    return out


def column_chart(series: Sequence[float | None], width: int, height: int) -> list[Line]:
    """The newest ``width`` values as columns of ``height`` lines, from zero to their maximum; gaps stay blank."""
    shown = list(series)[-width:]
    top = max((v for v in shown if v is not None), default=0.0)
    eighths = [round(v / top * height * 8) if v is not None and top > 0 else 0 for v in shown]
    return [
        (("".join([SHADES[0 if e < floor else min(8, e - floor)] for e in eighths]), "spark"),)
        for floor in range((height - 1) * 8, -1, -8)
    ]


def chart(label: str, newest: str, peak: str, series: Sequence[float | None], width: int, height: int) -> list[Line]:
    """A column chart with its name, newest value and maximum at its left."""
    notes = [(label, "dim"), (newest, "figure"), (f"max {peak}", "dim")]
    left = max(len(text) for text, _ in notes) + 2
    room = width - left - 2
    wide = fmt.stretched(series, room)
    out: list[Line] = []
    for i, line in enumerate(column_chart(wide, room, height)):
        text, style = notes[i] if i < len(notes) else ("", "")
        out.append(Pen(1).cell(text, left, style, left=True).parts_of(line))
    return out
