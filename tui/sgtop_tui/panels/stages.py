"""The scheduler's main thread by SGLang's stages: exclusive time, sums to the window."""

from __future__ import annotations

from .. import fmt
from ..lines import Line
from ..look import QUIET_CAUSES, Look
from .base import Panel, words
from .charts import shares_list
from .time import shares


def draw(look: Look, width: int, height: int) -> list[Line]:
    """A line a stage."""
    rank = look.focus
    if rank is None or not rank.stages_s:
        return words(look.why_empty("the main thread's time by stage") or "not known", width)[:height]
    total = sum(rank.stages_s.values())
    items = [
        (name, share, f"{fmt.ms(share * total * 1e3 / max(look.snap.covered_s, 0.1))}/s", _style(name))
        for name, share in shares(dict(rank.stages_s))
    ]
    return shares_list(items, width, height)


def _style(name: str) -> str:
    return "quiet" if name in QUIET_CAUSES else "bar"


def _note(look: Look) -> str:
    rank = look.focus
    return "" if rank is None else f"{rank.rank} · {look.window}"


def _ideal(look: Look, width: int) -> int:
    return min(10, len(look.focus.stages_s)) if look.focus is not None and look.focus.stages_s else 1


def _least(look: Look, width: int) -> int:
    return 3


PANEL = Panel(
    key="stages",
    title="main thread by stage",
    row=30,
    priority=8,
    draw=draw,
    ideal=_ideal,
    least=_least,
    min_width=52,
    from_width=140,
    from_height=30,
    note=_note,
    terms=("stages",),
)
