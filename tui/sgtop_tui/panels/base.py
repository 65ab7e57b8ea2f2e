"""What a panel is. A panel is one module that exports one :class:`Panel`; ``panels/__init__.py`` lists them.

Drawing is a pure function of the look and the size, so a panel is tested without a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .. import fmt
from ..lines import Line, Part, Pen, clip, width_of
from ..look import Look


def _no_title_note(look: Look) -> str:
    return ""


def _always(look: Look) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: where it stands, how much room it needs, and how it is drawn."""

    key: str
    title: str
    row: int
    """Panels of one row stand side by side, in the order of the registry."""
    priority: int
    """1 is the most important: the last to go when the terminal is small."""
    draw: Callable[[Look, int, int], list[Line]]
    """(look, width, height) → at most ``height`` lines, without the title."""
    ideal: Callable[[Look, int], int]
    """(look, width) → lines that it would like, without the title."""
    least: Callable[[Look, int], int]
    """(look, width) → lines without which it is no use, without the title."""
    most: int = 0
    """Lines beyond which more room would stay blank; 0: the ideal."""
    number: int | None = None
    """The digit that maximises it."""
    min_width: int = 36
    weight: float = 1.0
    stretch: bool = False
    from_width: int = 0
    from_height: int = 0
    """Shown on terminals of at least this size only."""
    shown: Callable[[Look], bool] = _always
    note: Callable[[Look], str] = _no_title_note
    """Words at the right of the title: window, rank."""
    terms: tuple[str, ...] = ()
    """Glossary terms that it shows, for ``e``."""


def title_line(panel: Panel, look: Look, width: int, joints: tuple[int, ...] = (), divided: bool = False) -> Line:
    """The rule above a panel with its number, name and note.

    Args:
        panel: the panel.
        look: what is shown.
        width: cells.
        joints: columns where a divider of the row above ends.
        divided: a divider begins at the last column.
    """
    pen = Pen()
    pen.put("─ ", "rule")
    if panel.number is not None:
        pen.put(f"{panel.number} ", "key")
    pen.put(panel.title, "title").put(" ", "rule")
    note = panel.note(look)
    room = width - pen.width - 5
    tail: list[Part] = []
    if note and room > 8:
        note = clip(note, room)
        tail = [(" ", "rule"), (note, "dim"), (" ──", "rule")]
    fill = width - pen.width - sum(width_of(t) for t, _ in tail)
    rule = ["─"] * max(0, fill)
    for joint in joints:
        at = joint - pen.width
        if 0 <= at < len(rule):
            rule[at] = "┴"
    pen.put("".join(rule), "rule")
    for text, style in tail:
        pen.put(text, style)
    parts = pen.parts
    if divided and parts:
        text, style = parts[-1]
        parts[-1] = (text[:-1] + ("┼" if text.endswith("┴") else "┬"), style)
    return tuple(parts)


def words(text: str, width: int, style: str = "dim", indent: int = 1) -> list[Line]:
    """A sentence that says why there is nothing to show, broken into lines."""
    from ..lines import wrap

    return [((" " * indent, ""), (piece, style)) for piece in wrap(text, max(8, width - indent - 1))]


def none_seen(what: str, look: Look) -> str:
    """``no prefill in the last 60 s``; of a window that is not filled yet only the time that was seen."""
    if look.snap.covered_s < 0.05:
        return f"no {what} seen yet"
    return f"no {what} in the last {look.window if look.filled else fmt.seconds(look.snap.covered_s)}"


def filter_note(look: Look, texts: Iterable[str]) -> str:
    """What the filter does to rows that hold ``texts``, for the title; nothing where there is no filter or no row.

    Rows of which none matches all stay, for a text may be meant for another panel; that has to be said.
    """
    wanted = look.choices.filter
    rows = [text.casefold() for text in texts] if wanted else []
    if not rows:
        return ""
    known = any(wanted.casefold() in row for row in rows)
    return f"filter {wanted!r}" if known else f"nothing matches {wanted!r}, all shown"


def rank_filter_note(look: Look) -> str:
    """What the filter does to rows of ranks."""
    return filter_note(look, (text for r in look.snap.ranks for text in (r.rank, r.state)))
