"""Where the time goes: forwards against the gaps between them, what fills the gaps, and how long they are."""

from __future__ import annotations

from sgtop_core.model.snapshot import Rank, StepGaps

from .. import fmt
from ..lines import Line, Pen
from ..look import QUIET_CAUSES, Look
from .base import Panel, none_seen, words
from .charts import histogram_block, histogram_line, rebin, shares_line, shares_list

SUSPECT = frozenset({"preempted", "throttled", "gc", "blocked"})
"""Causes outside SGLang's own work; marked where they take a notable share of the gaps."""
NOTABLE = 0.1
MOST = 0.5

SHORT = {
    "recv_requests": "recv",
    "process_input_requests": "input",
    "get_next_batch_to_run": "schedule",
    "process_queue": "queue",
    "process_batch_result": "result",
    "launch_batch_sample_if_needed": "sample",
    "sanity_check_cache": "check",
}
"""Names for one crowded line; everywhere else stages have SGLang's own names."""


def cause_style(name: str, share: float) -> str:
    """How a cause's bar looks."""
    if name in QUIET_CAUSES:
        return "quiet"
    if (name in SUSPECT or name.startswith("waiting for")) and share >= NOTABLE:
        return "warn"
    return "bar"


def shares(values: dict[str, float]) -> list[tuple[str, float]]:
    """(name, share) by size; what is nobody's fault and what has no name of its own come last, unless it is most.

    Last, it is the first to be summed as "rest" where there is no room: an idle server would not be called idle.
    """
    total = sum(values.values())
    if total <= 0:
        return []
    last = {"other": 1, **dict.fromkeys(QUIET_CAUSES, 2)}
    items = [(name, value / total) for name, value in values.items() if value > 0]
    return sorted(items, key=lambda item: (last.get(item[0], 0) if item[1] < MOST else -1, -item[1]))


def busy_line(gaps: StepGaps, rank: Rank, width: int) -> Line:
    """Forwards against the time between them."""
    on_gpu = gaps.label == "gpu"
    pen = Pen(1).put("in forwards (GPU, union) " if on_gpu else "in forwards (host) ", "dim")
    pen.put(fmt.percent(gaps.busy_share), "figure")
    pen.put("   between forwards ", "dim")
    pen.put(fmt.percent(None if gaps.busy_share is None else 1 - gaps.busy_share), "figure")
    if rank.gc is not None and rank.gc.count:
        extra = Pen().put("gc ", "dim").put(f"{rank.gc.count}", "figure").put(" × longest ", "dim")
        extra.put(fmt.ms(rank.gc.max_ms), "figure")
        if pen.width + extra.width + 3 <= width:
            pen.gap(3)
            for text, style in extra.parts:
                pen.put(text, style)
    return pen.line()


def mode_gaps_line(gaps: StepGaps, width: int) -> Line | None:
    """Gaps before the steps of each mode."""
    pen = Pen(1).put("gap before", "dim")
    for mode, q in sorted(gaps.by_mode.items(), key=lambda item: -item[1].total):
        part = Pen().put(f"  {mode} ", "dim").put(fmt.ms(q.p50), "figure").put(" p50 ", "dim")
        part.put(fmt.ms(q.p99), "figure").put(" p99", "dim")
        if pen.width + part.width > width:
            break
        for text, style in part.parts:
            pen.put(text, style)
    return pen.line() if gaps.by_mode else None


def _what(look: Look, rank: Rank) -> tuple[str, list[tuple[str, float]], float]:
    """(label, shares, total ms) of what fills the gaps; the main thread's stages where causes are not known."""
    if rank.gaps is not None and rank.gaps.causes_ms:
        return "gaps", shares(dict(rank.gaps.causes_ms)), sum(rank.gaps.causes_ms.values())
    stages = {name: s * 1e3 for name, s in rank.stages_s.items()}
    return "main thread", shares(stages), sum(stages.values())


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Busy share, causes, histogram; as lists and bars where there is room."""
    rank = look.focus
    if rank is None or (rank.gaps is None and not rank.stages_s):
        why = look.why_empty("where the time between forwards goes")
        if why is None:
            idle = rank is not None and rank.state == "live"
            why = none_seen("step", look) if idle else "not known"
        return words(why, width)[:height]
    out: list[Line] = []
    gaps = rank.gaps
    if gaps is not None:
        out.append(busy_line(gaps, rank, width))
    _, parts, total_ms = _what(look, rank)
    bins = rebin(gaps.histogram, max(3, width // 8)) if gaps is not None and gaps.histogram is not None else []
    chart = 0 if not bins else 1 if height < 6 else 3 if height < 11 else 4 + max(0, height - 12)
    modes = mode_gaps_line(gaps, width) if gaps is not None and height >= 5 else None
    room = height - len(out) - chart - (modes is not None)
    if room >= 3 and parts:
        per_s = total_ms / max(look.snap.covered_s, 0.1)
        items = [(name, share, f"{fmt.ms(share * per_s)}/s", cause_style(name, share)) for name, share in parts]
        out += shares_list(items, width, room)
    elif parts and room >= 1:
        out.append(shares_line([(SHORT.get(n, n), s, cause_style(n, s)) for n, s in parts], width))
    if modes is not None:
        out.append(modes)
    if chart == 1 and gaps is not None:
        pen = Pen(1).put("gaps ", "dim")
        for text, style in histogram_line(bins, width - 18):
            pen.put(text, style)
        pen.right((("p99 ", "dim"), (fmt.ms(gaps.quantiles_ms.p99), "figure")), width - 1)
        out.append(pen.line())
    elif chart and gaps is not None:
        block = histogram_block(bins, width - 18, chart)
        notes = [("gaps", gaps.quantiles_ms.count, fmt.count), ("p50", gaps.quantiles_ms.p50, fmt.ms)]
        notes += [("p99", gaps.quantiles_ms.p99, fmt.ms), ("max", gaps.quantiles_ms.max, fmt.ms)]
        for i, line in enumerate(block):
            pen = Pen(1)
            if i < len(notes):
                name, value, how = notes[i]
                pen.cell(name, 5, "dim", left=True).cell(how(value), 8, "figure")
            pen.to(16)
            for text, style in line:
                pen.put(text, style)
            out.append(pen.line())
    return out[:height]


def _note(look: Look) -> str:
    rank = look.focus
    if rank is None:
        return ""
    words_ = [rank.rank if look.choices.rank else f"{rank.rank}, most gaps" if len(look.snap.ranks) > 1 else rank.rank]
    if rank.gaps is not None and rank.gaps.label == "host":
        words_.append("host gaps")
    return " · ".join([*words_, look.window])


def _ideal(look: Look, width: int) -> int:
    rank = look.focus
    if rank is None or (rank.gaps is None and not rank.stages_s):
        return 1
    return 1 + min(6, len(_what(look, rank)[1])) + 1 + 3


def _least(look: Look, width: int) -> int:
    rank = look.focus
    if rank is None or (rank.gaps is None and not rank.stages_s):
        return 1
    return 3


PANEL = Panel(
    key="time",
    title="where the time goes",
    number=4,
    row=30,
    priority=5,
    draw=draw,
    ideal=_ideal,
    least=_least,
    most=14,
    min_width=58,
    weight=1.2,
    note=_note,
    terms=("in forwards", "between forwards", "gap", "causes", "stages", "gc", "union"),
)
