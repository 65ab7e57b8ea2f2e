"""The server's other processes: tokenizer, detokenizer, DP controller. One at 100 % of a CPU is a bottleneck."""

from __future__ import annotations

from .. import fmt
from ..lines import Line, Pen
from ..look import Look
from .base import Panel, words

FULL = 0.9
"""From this share of one core on, the process is marked: its Python runs on one core at most."""


def draw(look: Look, width: int, height: int) -> list[Line]:
    """A line a process."""
    if not look.snap.processes:
        return words("no tokenizer or detokenizer process seen", width)[:height]
    pen = Pen(1).cell("process", 16, "dim", left=True)
    for head, cell in (("cpu", 7), ("threads", 8), ("memory", 10), ("pid", 9)):
        pen.cell(head, cell, "dim")
    out = [pen.line()]
    for process in look.snap.processes:
        full = process.cpu_share is not None and process.cpu_share >= FULL
        pen = Pen(1).cell(process.role, 16, left=True)
        pen.cell(("△" if full else "") + fmt.percent(process.cpu_share), 7, "warn" if full else "figure")
        pen.cell(fmt.count(process.threads), 8, "figure").cell(fmt.size(process.rss_bytes), 10, "figure")
        pen.cell(str(process.pid), 9, "dim")
        out.append(pen.line())
    return out[:height]


def _ideal(look: Look, width: int) -> int:
    return 1 + max(1, min(8, len(look.snap.processes)))


def _least(look: Look, width: int) -> int:
    return 2


PANEL = Panel(
    key="processes",
    title="other processes of the server",
    row=45,
    priority=10,
    draw=draw,
    ideal=_ideal,
    least=_least,
    min_width=52,
    from_width=100,
    from_height=40,
    shown=lambda look: bool(look.snap.processes) or look.choices.maximised == "processes",
    terms=("processes", "cpu"),
)
