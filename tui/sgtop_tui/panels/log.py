"""The latest notes and audit lines."""

from __future__ import annotations

from ..lines import Line, clip
from ..look import Look
from .base import Panel


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Newest last."""
    if not look.snap.log:
        return [((" nothing yet", "dim"),)]
    return [((" ", ""), (clip(text, width - 2), "dim")) for text in look.snap.log[-height:]]


def _ideal(look: Look, width: int) -> int:
    return min(8, max(1, len(look.snap.log)))


def _least(look: Look, width: int) -> int:
    return 1


PANEL = Panel(
    key="log",
    title="log",
    row=45,
    priority=11,
    draw=draw,
    ideal=_ideal,
    least=_least,
    min_width=48,
    from_width=100,
    from_height=40,
    shown=lambda look: bool(look.snap.log) or look.choices.maximised == "log",
    terms=("log",),
)
