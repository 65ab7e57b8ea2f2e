"""A row a rank; with many ranks and few lines, ranks stand side by side and the one out of line is marked."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from sgtop_core.model.snapshot import Rank

from .. import fmt
from ..glyphs import STATES
from ..lines import Line, Part, Pen
from ..look import Look, step_p
from .base import Panel, rank_filter_note

OUT_OF_LINE = 1.25
"""A rank is marked where its figure is this many times the median of all ranks …"""
LEAST_MS = 0.5
"""… and at least this much above it, ms."""

_SPEAKING = ("hung", "lost", "starting", "elsewhere")
"""States whose words matter more than figures."""

Getter = Callable[[Rank], "float | None"]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a rank."""

    head: str
    width: int
    get: Getter
    show: Callable[[float | None], str]
    priority: int
    """1 stays longest when the width shrinks."""
    compare: bool = False
    """Ranks should agree: mark the one that does not."""


def _gap(quantile: str) -> Getter:
    def get(rank: Rank) -> float | None:
        return getattr(rank.gaps.quantiles_ms, quantile) if rank.gaps else None

    return get


def _between(rank: Rank) -> float | None:
    return None if rank.gaps is None or rank.gaps.busy_share is None else 1 - rank.gaps.busy_share


def _steps(rank: Rank) -> float | None:
    return sum(m.steps_per_s for m in rank.modes.values()) if rank.modes else None


def _tokens(rank: Rank) -> float | None:
    known = [m.tokens_per_s for m in rank.modes.values() if m.tokens_per_s is not None]
    return sum(known) if known else None


def _step(quantile: str) -> Getter:
    return lambda rank: step_p(rank, quantile)


def _age(value: float | None) -> str:
    return fmt.UNKNOWN if value is None else "now" if value < 1 else fmt.seconds(value)


COLUMNS: tuple[Column, ...] = (
    Column("steps/s", 7, _steps, fmt.per_s, 5),
    Column("step ms", 7, _step("p50"), fmt.ms_bare, 1, compare=True),
    Column("p99", 6, _step("p99"), fmt.ms_bare, 2, compare=True),
    Column("gap ms", 7, _gap("p50"), fmt.ms_bare, 6, compare=True),
    Column("p99", 6, _gap("p99"), fmt.ms_bare, 3, compare=True),
    Column("between", 7, _between, fmt.percent, 9),
    Column("tok/s", 7, _tokens, fmt.count, 10),
    Column("run", 5, lambda r: r.queue.running, fmt.count, 4),
    Column("wait", 5, lambda r: r.queue.waiting, fmt.count, 4),
    Column("oldest", 7, lambda r: r.queue.oldest_wait_s, fmt.seconds, 12),
    Column("kv", 5, lambda r: r.kv_usage, fmt.percent, 7),
    Column("cpu", 5, lambda r: r.cpu_share, fmt.percent, 8),
    Column("gc", 5, lambda r: r.gc.count if r.gc else None, fmt.count, 13),
    Column("gc max", 7, lambda r: r.gc.max_ms if r.gc else None, fmt.ms, 14),
    Column("retracted", 9, lambda r: r.queue.retracted, fmt.count, 15),
    Column("last step", 9, lambda r: r.last_step, lambda v: fmt.UNKNOWN if v is None else f"{v:.0f}", 11),
    Column("ago", 6, lambda r: r.last_step_age_s, _age, 11),
    Column("pid", 8, lambda r: r.pid, lambda v: fmt.UNKNOWN if v is None else f"{v:.0f}", 16),
)


def columns_for(width: int) -> list[Column]:
    """The columns that fit, in their order."""
    left = width
    kept: list[Column] = []
    for column in sorted(COLUMNS, key=lambda c: c.priority):
        if column.width + 1 > left:
            break
        left -= column.width + 1
        kept.append(column)
    return [c for c in COLUMNS if c in kept]


def out_of_line(value: float | None, all_values: list[float | None]) -> bool:
    """Whether ``value`` (ms) is well above the median of the ranks."""
    known = [v for v in all_values if v is not None]
    if value is None or len(known) < 2:
        return False
    median = statistics.median_low(known)
    return value > median * OUT_OF_LINE and value - median > LEAST_MS


def _label(rank: Rank, width: int) -> list[Part]:
    glyph, style = STATES.get(rank.state, ("?", "warn"))
    return [(f" {rank.rank:<{width}} ", "strong" if style in ("crit", "warn") else ""), (f"{glyph} ", style)]


def rows(look: Look, width: int) -> list[Line]:
    """Head and a line a rank."""
    ranks = look.ranks
    name = max((len(r.rank) for r in ranks), default=4)
    columns = columns_for(width - name - 5)
    values = {c: [c.get(r) for r in ranks] for c in columns if c.compare}
    head = Pen().put(" " * (name + 4))
    for column in columns:
        head.gap(1).cell(column.head, column.width, "dim")
    out = [head.line()]
    for rank in ranks:
        pen = Pen()
        for part in _label(rank, name):
            pen.put(*part)
        if rank.state in _SPEAKING and (rank.message or not rank.modes):
            pen.put(rank.message or rank.state, STATES[rank.state][1])
            out.append(pen.line())
            continue
        for column in columns:
            value = column.get(rank)
            marked = column.compare and len(ranks) > 1 and out_of_line(value, values[column])
            text = column.show(value)
            pen.gap(1).cell(("△" if marked else "") + text, column.width, _figure_style(value, marked))
        out.append(pen.line())
    return out


def inline(rank: Rank, look: Look, width: int) -> Line:
    """One rank with its figures named, where there is no line for the head."""
    name = max((len(r.rank) for r in look.ranks), default=4)
    pen = Pen()
    for part in _label(rank, name):
        pen.put(*part)
    if rank.state in _SPEAKING and (rank.message or not rank.modes):
        return pen.put(rank.message or rank.state, STATES[rank.state][1]).line()
    q = rank.gaps.quantiles_ms if rank.gaps else None
    groups: list[Line] = [
        (("step ", "dim"), (f"{fmt.ms_pair(step_p(rank, 'p50'), step_p(rank, 'p99'))}  ", "figure")),
        (("gap ", "dim"), (f"{fmt.ms_pair(q.p50, q.p99) if q else fmt.ms_pair(None, None)}  ", "figure")),
        (("run ", "dim"), (f"{fmt.count(rank.queue.running)}  ", "figure")),
        (("wait ", "dim"), (f"{fmt.count(rank.queue.waiting)}  ", "figure")),
        (("kv ", "dim"), (f"{fmt.percent(rank.kv_usage)}  ", "figure")),
        (("cpu ", "dim"), (fmt.percent(rank.cpu_share), "figure")),
    ]
    for group in groups:
        if not pen.add(group, width):
            break
    return pen.line()


def _figure_style(value: float | None, marked: bool) -> str:
    return "warn" if marked else "dim" if value is None else "figure"


HEAT = ("step ms", "gap ms", "gap p99", "wait", "step p99", "steps/s", "kv", "cpu")
_HEAT: dict[str, tuple[Getter, Callable[[float | None], str], bool]] = {
    "step ms": (_step("p50"), fmt.ms_bare, True),
    "step p99": (_step("p99"), fmt.ms_bare, True),
    "gap ms": (_gap("p50"), fmt.ms_bare, True),
    "gap p99": (_gap("p99"), fmt.ms_bare, True),
    "wait": (lambda r: r.queue.waiting, fmt.count, False),
    "steps/s": (_steps, fmt.per_s, False),
    "kv": (lambda r: r.kv_usage, fmt.percent, False),
    "cpu": (lambda r: r.cpu_share, fmt.percent, False),
}


def heat(look: Look, width: int, height: int) -> list[Line]:
    """Ranks side by side, a line a figure: eight ranks in four lines."""
    ranks = look.ranks
    cell = max(6, *(len(r.rank) + 1 for r in ranks))
    cells = max(1, (width - 11) // cell)
    shown = ranks if len(ranks) <= cells else ranks[: cells - 1]
    pen = Pen().gap(11)
    for rank in shown:
        glyph, style = STATES.get(rank.state, ("?", "warn"))
        text = rank.rank if rank.state == "live" else f"{glyph}{rank.rank}"
        pen.cell(text, cell, "dim" if rank.state == "live" else style)
    if len(shown) < len(ranks):
        pen.cell(f"+{len(ranks) - len(shown)}", cell, "dim")
    out = [pen.line()]
    for name in HEAT[: max(1, height - 1)]:
        get, show, compare = _HEAT[name]
        values = [get(r) for r in ranks]
        pen = Pen(1).cell(name, 10, "dim", left=True)
        for rank in shown:
            value = get(rank)
            marked = compare and out_of_line(value, values)
            pen.cell(("△" if marked else "") + show(value), cell, _figure_style(value, marked))
        out.append(pen.line())
    return out


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Rows, or the heat table where rows do not fit."""
    if not look.ranks:
        elsewhere = look.snap.server.ranks_elsewhere
        text = f"not on this host: {', '.join(elsewhere)}" if elsewhere else "no rank seen yet"
        return [((f" {text}", "dim"),)]
    lines = rows(look, width)
    elsewhere = look.snap.server.ranks_elsewhere
    if elsewhere:
        lines.append(((f" not on this host: {', '.join(elsewhere)}", "dim"),))
    if len(lines) <= height:
        return lines
    if len(look.ranks) <= height:
        return [inline(rank, look, width) for rank in look.ranks]
    if len(look.ranks) > 3:
        return heat(look, width, height)
    return lines[:height]


def _note(look: Look) -> str:
    parts = [f"sorted by {look.choices.sort}"] if look.choices.sort != "rank" else []
    said = rank_filter_note(look)
    return " · ".join([*parts, *([said] if said else []), look.window])


def _ideal(look: Look, width: int) -> int:
    return 1 + max(1, min(len(look.ranks), 32)) + bool(look.snap.server.ranks_elsewhere)


def _least(look: Look, width: int) -> int:
    n = len(look.ranks)
    return max(1, n) if n <= 2 else 4


PANEL = Panel(
    key="ranks",
    title="ranks",
    number=5,
    row=40,
    priority=6,
    draw=draw,
    ideal=_ideal,
    least=_least,
    min_width=56,
    note=_note,
    terms=("rank", "step", "gap", "between forwards", "waiting", "oldest", "kv", "cpu", "gc", "out of line"),
)
