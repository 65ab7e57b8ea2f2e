"""Decode: tokens a second, batch against the largest captured graph, step length, graph share."""

from __future__ import annotations

from sgtop_core.model.snapshot import Forward

from .. import fmt
from ..lines import Line, Pen
from ..look import Look, ModeSum
from .base import Panel, none_seen, words
from .mode_lines import MOST, figure, gpu_line, ideal, least, rate_chart, step_line

LITTLE_GRAPH = 0.5
"""Below this share of graph replays, where graphs are captured, the share is marked."""


def batch_over_graph(look: Look, mode: ModeSum) -> bool:
    """The usual batch is larger than the largest captured one."""
    return look.graph_max_bs is not None and mode.batch_p50 is not None and mode.batch_p50 > look.graph_max_bs


def graph_line(look: Look, mode: ModeSum) -> Line:
    """Share of steps that replayed a graph, and the batch that decides it."""
    pen = Pen(1).put("graph ", "dim")
    low = mode.graph_share is not None and mode.graph_share < LITTLE_GRAPH and look.graph_max_bs is not None
    share = fmt.percent(mode.graph_share)
    pen.cell(share + (" △" if low else ""), 5, "warn" if low else "figure").gap(2)
    if look.graph_max_bs is not None:
        pen.put("captured ≤ ", "dim").put(f"{look.graph_max_bs}", "figure")
    elif look.snap.server.device == "cpu":
        pen.put("a CPU server has none", "dim")
    else:
        pen.put("none captured" if mode.graph_share == 0 else "captured sizes not known", "dim")
    return pen.line()


def spec_line(look: Look, width: int) -> Line | None:
    """Speculative decoding: what verify and draft take a step. None where no draft runner ran."""
    forwards: list[Forward] = [f for r in look.leaders[:1] for f in r.forwards]
    draft = [f for f in forwards if f.runner == "draft"]
    if not draft:
        return None
    pen = Pen(1)
    verify = next((f for f in forwards if f.runner == "target" and f.mode == "TARGET_VERIFY"), None)
    if verify is not None:
        q = verify.gpu_ms or verify.host_ms
        pen.put("verify ", "dim").put(fmt.ms(q.p50), "figure").gap(2)
    worst = max(draft, key=lambda f: f.host_ms.total)
    q = worst.gpu_ms or worst.host_ms
    pen.put("draft ", "dim").put(fmt.ms(q.p50), "figure").gap(2)
    mode = look.decode
    if mode is not None and mode.tokens_per_s and mode.steps_per_s and mode.batch_p50:
        accepted = mode.tokens_per_s / (mode.steps_per_s * mode.batch_p50)
        pen.add((("≈", "dim"), (fmt.count(accepted), "figure"), (" tok/step", "dim")), width)
    return pen.line()


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Figures, most telling first."""
    mode = look.decode
    if mode is None:
        why = look.why_empty("decode steps, batches, graphs and their time")
        pen = Pen(1)
        figure(pen, fmt.count(look.running), "running", 3)
        if why is not None and look.running is None:
            return words(why, width)[:height]
        text = why or none_seen("decode", look)
        return [pen.line(), *words(text, width)][:height]
    top = Pen(1)
    figure(top, fmt.count(mode.tokens_per_s), "tok/s", 6)
    top.put("bs ", "dim")
    if batch_over_graph(look, mode):
        top.put(f"{fmt.count(mode.batch_p50)} > graph {look.graph_max_bs}", "warn")
    else:
        top.put(fmt.count(mode.batch_p50), "figure").put(" p50", "dim")
    top.add((("  ", ""), (fmt.count(mode.batch_max), "figure"), (" max", "dim")), width)
    out = [top.line(), step_line(mode, width), graph_line(look, mode)]
    spec = spec_line(look, width)
    if spec is not None:
        out.insert(2, spec) if height <= 3 else out.append(spec)
    if mode.gpu_p50 is not None:
        out.append(gpu_line(mode))
    pen = Pen(1)
    figure(pen, fmt.per_s(mode.steps_per_s), "steps/s", 4)
    figure(pen, fmt.count(look.running), "running", 3)
    out.append(pen.line())
    out += rate_chart(mode, width, height - len(out))
    return out[:height]


PANEL = Panel(
    key="decode",
    title="decode",
    number=3,
    row=20,
    priority=4,
    draw=draw,
    ideal=ideal,
    least=least,
    most=MOST,
    min_width=40,
    weight=1.2,
    note=lambda look: look.window,
    terms=("tok/s", "batch", "step", "graph share", "captured", "eager", "gpu", "accepted"),
)
