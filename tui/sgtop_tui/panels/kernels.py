"""GPU kernels of the focused rank: a table a mode in nsys' columns, launch gaps a mode, and what tracing costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sgtop_core.model.kernel_view import Kernel, KernelGaps, KernelMode, KernelView

from .. import fmt
from ..lines import Line, Pen, clip, line_width
from ..look import KERNEL_SORTS, Look
from .base import Panel, filter_note, words
from .charts import histogram_block, histogram_line, rebin, shares_line

_COLUMNS = (
    ("time", 6), ("total", 8), ("inst", 7), ("/step", 7), ("avg", 8), ("med", 8), ("min", 8), ("max", 8), ("stddev", 8),
)  # fmt: skip
_NAME = 24
"""Cells that a name gets at least."""
FAULTS = frozenset({"preempted", "throttled", "gc"})
"""Causes of idle time that somebody can mend; a finding may be about them, so they are the last to go."""


def us(value: float | None) -> str:
    """Microseconds with the unit that suits: ``2.1 µs``, ``340 µs``, ``1.2 ms``."""
    if value is None:
        return fmt.UNKNOWN
    return f"{value:.1f} µs" if abs(value) < 99.95 else fmt.ms(value / 1e3)


def view(look: Look) -> KernelView | None:
    """Tracing of the focused rank; None where nobody asked for it."""
    return look.focus.tracing if look.focus is not None else None


def unusable(result: Any) -> str:
    """Why no rank can trace, from the reply of all to ``kernels``; empty where one can."""
    each = [r for r in result.values() if isinstance(r, Mapping)] if isinstance(result, Mapping) else []
    if not each or any(r.get("state") not in ("failed", "unavailable") for r in each):
        return ""
    return str(each[0].get("reason") or each[0]["state"])


def _texts(mode: KernelMode) -> Iterator[str]:
    """What the filter is held against."""
    return (text for k in mode.rows for text in (k.full_name, k.name, k.category))


def rows(mode: KernelMode, look: Look) -> list[Kernel]:
    """Rows of a mode that pass the filter, in the chosen order; all where no kernel of any mode passes."""
    wanted = look.choices.filter.casefold()
    out = [k for k in mode.rows if wanted in k.full_name.casefold() or wanted in k.name.casefold()
           or wanted in k.category.casefold()]  # fmt: skip
    v = view(look)
    if not out and not (v is not None and any(wanted in text.casefold() for m in v.modes for text in _texts(m))):
        out = list(mode.rows)
    order = look.choices.kernel_sort
    if order == "name":
        return sorted(out, key=lambda k: k.name.casefold())
    key = {"launches": lambda k: -k.count, "avg": lambda k: -k.avg_us, "max": lambda k: -k.max_us}.get(order)
    return sorted(out, key=key) if key is not None else out


def state_line(v: KernelView, now_s: float, width: int) -> Line:
    """What is traced, how busy the GPU was, what tracing costs. Parts that do not fit are left out."""
    how = {"windows": f"windows {v.window_s:g} s in {v.period_s:g} s", "on": "continuous", "off": "off"}.get(
        v.mode, v.mode
    )
    parts: list[tuple[str, str, str]] = [("", how, "")]
    if v.state in ("failed", "unavailable", "yielded"):
        parts.append(("", v.state, "warn"))
    if v.traced_s:
        parts += [
            ("traced ", fmt.seconds(v.traced_s), "figure"),
            ("busy (union) ", fmt.percent(v.busy_share), "figure"),
            ("by events ", fmt.percent(v.event_busy_share), "figure"),
        ]
        if v.communication_share:  # a rank alone has none
            parts.append(("communication ", fmt.percent(v.communication_share), "figure"))
            parts.append(("alone ", fmt.percent(v.communication_exposed_share), "figure"))
        if v.inflation:
            mode, ratio = max(v.inflation.items(), key=lambda item: abs(item[1] - 1))
            parts.append((f"tracing costs {mode} ", f"×{ratio:.3f}", "warn" if ratio > 1.05 else "figure"))
    lost = v.lost_buffers or v.untimed
    if lost:
        parts.append(("lost ", f"{fmt.counted(v.lost_buffers, 'buffer')}, {v.untimed} without time", "warn"))
    if v.newest_s is not None and now_s - v.newest_s > 2:
        parts.append(("from ", f"{fmt.seconds(now_s - v.newest_s)} ago", "figure"))
    pen = Pen(1)
    for name, value, style in parts:
        if pen.width + len(name) + len(value) + 3 > width:
            break
        if pen.width > 1:
            pen.put("  ")
        pen.put(name, "dim").put(value, style)
    return pen.line()


def table(mode: KernelMode, look: Look, width: int, height: int) -> list[Line]:
    """Head and rows of one mode, at most ``height`` lines."""
    columns = list(_COLUMNS)
    while len(columns) > 3 and 1 + sum(w for _, w in columns) + 2 + _NAME > width:
        columns.pop()
    pen = Pen(1)
    for name, w in columns:
        pen.cell(name, w, "dim")
    pen.put("  ").put(mode.mode, "title")
    note = f"  {_of_mode(mode)}"
    room = width - pen.width - 1
    if room > 12:
        pen.put(clip(note, room), "dim")
    out = [pen.line()]
    shown = rows(mode, look)
    if mode.rows and not shown and height > 1:
        out += words(f"nothing matches {look.choices.filter!r}", width)[:1]
    for k in shown[: max(0, height - 1)]:
        figures = {
            "time": fmt.percent(k.share), "total": fmt.ms(k.total_ms), "inst": fmt.count(k.count),
            "/step": fmt.count(k.per_step), "avg": us(k.avg_us), "med": us(k.med_us), "min": us(k.min_us),
            "max": us(k.max_us), "stddev": us(k.stddev_us),
        }  # fmt: skip
        pen = Pen(1)
        for name, w in columns:
            pen.cell(figures[name], w, "figure" if name in ("time", "total") else "")
        room = width - pen.width - 3
        category = f" {k.category}" if room > _NAME + 14 else ""
        pen.put("  ").put(clip(k.name, room - len(category)))
        pen.put(category, "dim")
        out.append(pen.line())
    return out


def _of_mode(mode: KernelMode) -> str:
    """What the table of a mode sums up. Outside forwards there are none to count launches by."""
    if mode.launches_per_step is None:
        parts = [fmt.counted(mode.launches, "launch", "launches")]
    else:
        parts = [fmt.counted(mode.forwards, "forward")]
        parts += [f"{fmt.counted(mode.launches_per_step, 'launch', 'launches')} a step"]
    if mode.graph_share is not None and (mode.graph_share or mode.launches_per_step is not None):
        parts.append(f"in graphs {fmt.percent(mode.graph_share)}")
    return " · ".join(parts)


def gap_line(g: KernelGaps, v: KernelView, width: int) -> Line:
    """Gaps before kernels of one mode in one line: as many causes as fit, the others summed as ``rest``.

    What somebody can mend comes before what only is large, and rather than such a cause the count or the p99 goes.
    """
    causes = g.shares()
    wanted = next((c for c in causes if c[0] in FAULTS), causes[0] if causes else None)
    for left_out in ((), ("count",), ("count", "p99")):
        pen = _gap_head(g, left_out)
        shown = _that_fit(causes, v, width - pen.width)
        if wanted is None or wanted in shown:
            break
    for cause in shown:
        for text, style in _cause(cause, v):
            pen.put(text, style)
    if len(shown) < len(causes):
        rest = max(0.0, 1 - sum(part for _, part in shown))
        pen.add(((f"  rest {fmt.percent(rest)}" if shown else f"  +{len(causes)} more", "dim"),), width)
    return pen.line()


def _gap_head(g: KernelGaps, left_out: Sequence[str]) -> Pen:
    pen = Pen(1).put("gaps ", "dim").put(g.mode, "title").put("  ", "dim")
    if "count" not in left_out:
        pen.put(f"{fmt.count(g.count)} · ", "dim")
    pen.put(fmt.ms(g.total_ms), "figure").put(" · p50 ", "dim").put(us(g.p50_us), "figure")
    if "p99" not in left_out:
        pen.put(" · p99 ", "dim").put(us(g.p99_us), "figure")
    return pen


def _cause(cause: tuple[str, float], v: KernelView) -> Line:
    name, part = cause
    text = f"{name} <{v.threshold_us:g} µs" if name == "kernel wait" else name
    return ((f"  {text} ", "dim"), (fmt.percent(part), "figure"))


def _that_fit(causes: Sequence[tuple[str, float]], v: KernelView, room: int) -> list[tuple[str, float]]:
    """Causes that fit into ``room`` beside their ``rest``, in their order; of too many the faults stay."""
    if sum(line_width(_cause(c, v)) for c in causes) <= room:
        return list(causes)
    room -= len("  rest 100%")
    kept: list[tuple[str, float]] = []
    for cause in sorted(causes, key=lambda c: c[0] not in FAULTS):  # stable: the largest first within either
        need = line_width(_cause(cause, v))
        if need <= room:
            kept.append(cause)
            room -= need
    return [c for c in causes if c in kept]


def _gaps(v: KernelView, width: int, height: int) -> list[Line]:
    out: list[Line] = []
    for g in v.gaps:
        if len(out) + 2 > height:
            break
        out.append(gap_line(g, v, width))
        bins = rebin(g.histogram, max(2, width // 9))
        tall = (height - len(out)) // max(1, len(v.gaps))
        if tall >= 4:
            out += histogram_block(bins, width, min(4, tall))
        else:
            out.append(Pen(1).parts_of(histogram_line(bins, width - 1)))
    return out


def draw(look: Look, width: int, height: int) -> list[Line]:
    """State, categories, tables, gaps: as much as fits."""
    v = view(look)
    if v is None:
        return words("kernel tracing is off; k turns it on (windows of 1 s in 10 s, then continuous)", width)[:height]
    out = [state_line(v, look.snap.mono_ns / 1e9, width)]
    if v.reason:
        out += words(v.reason, width, "warn" if v.state in ("failed", "unavailable") else "dim")
    if not v.modes:
        if not v.reason and v.mode != "off":
            out += words("no kernel has run in a window yet", width)
        return out[:height]
    total = sum(v.categories_ms.values())
    if total and (height > 4 or height - len(out) == 1):  # no table fits into one line
        items = [(name, ms / total, "bar") for name, ms in v.categories_ms.items()]
        out.append(shares_line(items, width))
    modes = _by_time(v.modes)
    large = look.choices.maximised == "kernels"
    left = height - len(out)
    for_gaps = 2 * len(v.gaps) if large and left >= 12 else 0
    left -= for_gaps
    for n, mode in enumerate(modes):
        share = max(3, left // (len(modes) - n))
        if left < 2:
            break
        lines = table(mode, look, width, share if left - share >= 2 else left)  # no table is one line
        out += lines
        left -= len(lines)
    if large:
        out += _gaps(v, width, height - len(out))
    return out[:height]


def _by_time(modes: Sequence[KernelMode]) -> list[KernelMode]:
    return sorted(modes, key=lambda m: -m.total_ms)


def _ideal(look: Look, width: int) -> int:
    v = view(look)
    return 1 if v is None else 2 + min(14, sum(1 + min(5, len(m.rows)) for m in v.modes) or 1)


def _least(look: Look, width: int) -> int:
    return 2


def _shown(look: Look) -> bool:
    v = view(look)
    on = v is not None and (v.mode != "off" or bool(v.modes)) and v.state != "unavailable"
    # A server without a GPU has no kernels: one look at the large panel says why, the board need not.
    return (on and not (v is not None and v.state == "failed" and not v.modes)) or look.choices.maximised == "kernels"


def _note(look: Look) -> str:
    v = view(look)
    if v is None or look.focus is None:
        return ""
    order = look.choices.kernel_sort
    by = f" · by {order}" if order != KERNEL_SORTS[0] else ""
    said = filter_note(look, (text for mode in v.modes for text in _texts(mode)))
    return f"{said + ' · ' if said else ''}{look.focus.rank} · {look.window}{by}"


PANEL = Panel(
    key="kernels",
    title="kernels",
    number=8,
    row=35,
    priority=6,
    draw=draw,
    ideal=_ideal,
    least=_least,
    most=40,
    min_width=60,
    from_width=80,
    from_height=30,
    shown=_shown,
    note=_note,
    terms=("kernel", "kernel gap"),
)
