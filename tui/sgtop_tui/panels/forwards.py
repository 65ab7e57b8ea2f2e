"""Forwards by runner and mode: the children of a step. Shown where a draft runner makes them differ from steps."""

from __future__ import annotations

from sgtop_core.model.snapshot import Forward

from .. import fmt
from ..lines import Line, Pen
from ..look import Look
from .base import Panel, words

_HEADS = ("count", "host p50", "p99", "gpu p50", "p99", "graph", "tok/s")
_WIDTH = 9


def _forwards(look: Look) -> tuple[Forward, ...]:
    return look.focus.forwards if look.focus is not None else ()


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Head and a line a (runner, mode)."""
    forwards = _forwards(look)
    if not forwards:
        return words(look.why_empty("forwards by runner and mode") or "no forward in the window", width)[:height]
    name = 24
    n = max(1, (width - name - 1) // _WIDTH)
    pen = Pen(1).gap(name)
    for head in _HEADS[:n]:
        pen.cell(head, _WIDTH, "dim")
    out = [pen.line()]
    for f in sorted(forwards, key=lambda f: -f.host_ms.total):
        pen = Pen(1).cell(f"{f.runner} {f.mode}", name, left=True)
        figures = (
            fmt.count(f.count),
            fmt.ms(f.host_ms.p50),
            fmt.ms(f.host_ms.p99),
            fmt.ms(f.gpu_ms.p50 if f.gpu_ms else None),
            fmt.ms(f.gpu_ms.p99 if f.gpu_ms else None),
            fmt.percent(f.graph_share),
            fmt.count(f.tokens_per_s),
        )
        for figure in figures[:n]:
            pen.cell(figure, _WIDTH, "dim" if figure == fmt.UNKNOWN else "figure")
        out.append(pen.line())
    return out[:height]


def _ideal(look: Look, width: int) -> int:
    return 1 + min(6, max(1, len(_forwards(look))))


def _least(look: Look, width: int) -> int:
    return 2


def _shown(look: Look) -> bool:
    return any(f.runner == "draft" for f in _forwards(look)) or look.choices.maximised == "forwards"


def _note(look: Look) -> str:
    rank = look.focus
    return "" if rank is None else f"{rank.rank} · {look.window}"


PANEL = Panel(
    key="forwards",
    title="forwards",
    row=25,
    priority=7,
    draw=draw,
    ideal=_ideal,
    least=_least,
    min_width=60,
    from_width=100,
    from_height=30,
    shown=_shown,
    note=_note,
    terms=("forward", "gpu", "graph share"),
)
