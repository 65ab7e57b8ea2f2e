"""The mode strip: what each rank did, slice by slice, newest at the right."""

from __future__ import annotations

from itertools import groupby

from sgtop_core.model.snapshot import Cell, Rank

from .. import fmt
from ..glyphs import MODES, ModeGlyph, mode_glyph
from ..lines import Line, Part, Pen, flow
from ..look import Look
from .base import Panel, words


def strip(cells: tuple[Cell, ...], width: int) -> Line:
    """``cells`` in ``width`` columns, each as wide as fits, newest at the right; neighbours of one look joined."""
    if width <= 0:
        return ()
    scale = max(1, -(-width // len(cells))) if cells else 1  # rounded up: a strip without a hole at its left
    shown = cells[-(width // scale) :]
    parts: list[Part] = []
    blank = width - len(shown) * scale
    if blank:
        parts.append((" " * blank, ""))
    for cell, same in groupby(shown):
        glyph = mode_glyph(cell.mode, cell.eager)
        parts.append((glyph.letter * (scale * len(list(same))), glyph.style))
    return tuple(parts)


def _label_width(look: Look) -> int:
    return max((len(r.rank) for r in look.ranks), default=3) + 2


def _alike(a: Rank, b: Rank) -> bool:
    """Two ranks that did the same nearly all the time: one row can stand for both."""
    if len(a.strip) != len(b.strip) or a.state != b.state:
        return False
    differ = sum(x.mode != y.mode or x.eager != y.eager for x, y in zip(a.strip, b.strip, strict=True))
    return differ <= len(a.strip) // 10


def choose(ranks: tuple[Rank, ...], rows: int, focus: Rank | None) -> tuple[list[tuple[str, Rank]], int]:
    """(label, rank) for at most ``rows`` rows, and how many ranks have no row.

    Where all fit, each has its row. Else ranks that did the same share one, and the rank in trouble comes first.
    """
    if len(ranks) <= rows:
        return [(r.rank, r) for r in ranks], 0
    groups: list[list[Rank]] = []
    for rank in ranks:
        for group in groups:
            if _alike(group[0], rank):
                group.append(rank)
                break
        else:
            groups.append([rank])
    if focus is not None:
        groups.sort(key=lambda g: focus not in g)
    shown = groups[:rows]
    hidden = sum(len(g) for g in groups[rows:])
    return [(g[0].rank if len(g) == 1 else f"{g[0].rank} +{len(g) - 1}", g[0]) for g in shown], hidden


def legend(look: Look, width: int, hidden: int = 0) -> Line:
    """Letters that stand on the strips now, with their words."""
    seen: dict[str, ModeGlyph] = {}
    # Equal cells are mostly one object: 1,000 of them cost little by identity, and much by value.
    cells = {id(cell): cell for rank in look.ranks for cell in rank.strip}
    for cell in cells.values():
        glyph = mode_glyph(cell.mode, cell.eager)
        if glyph.letter != " ":
            seen.setdefault(glyph.letter, glyph)
    order = {glyph.letter: i for i, glyph in enumerate(MODES.values())}
    groups: list[Line] = [
        ((glyph.letter, glyph.style), (f" {glyph.word}", "dim"))
        for glyph in sorted(seen.values(), key=lambda g: order.get(g.letter, 99))
    ]
    if hidden:
        groups.append(((f"+{fmt.counted(hidden, 'rank')}: 1 shows all", "dim"),))
    lines = flow(groups, width, between=2, indent=1)
    return lines[0] if lines else ()


def draw(look: Look, width: int, height: int) -> list[Line]:
    """A row a rank and the legend."""
    why = look.why_empty("every forward pass, by mode")
    if why is not None and not any(r.strip for r in look.ranks):
        return words(why, width)[:height]
    chosen, hidden = choose(look.ranks, max(1, height - 1), look.focus)
    label_width = max(_label_width(look), max((len(label) for label, _ in chosen), default=0) + 1)
    out: list[Line] = []
    for label, rank in chosen:
        marked = rank is look.focus and len(look.ranks) > 1
        pen = Pen().cell(label, label_width, "strong" if marked else "dim", left=True)
        if not rank.strip:
            pen.put(rank.message or rank.state, "dim")
        for text, style in strip(rank.strip, width - label_width - 1):
            pen.put(text, style)
        out.append(pen.line())
    if len(out) < height:
        out.append(legend(look, width, hidden))
    return out[:height]


def _note(look: Look) -> str:
    n = max((len(r.strip) for r in look.ranks), default=0)
    if not n:
        return ""
    return f"newest right, one cell {fmt.ms(look.snap.strip_cell_s * 1e3)}"


def _ideal(look: Look, width: int) -> int:
    return min(len(look.ranks), 16) + 1 if any(r.strip for r in look.ranks) else 2


def _least(look: Look, width: int) -> int:
    return min(len(look.ranks), 2) + 1 if any(r.strip for r in look.ranks) else 1


PANEL = Panel(
    key="modes",
    title="mode",
    number=1,
    row=10,
    priority=3,
    draw=draw,
    ideal=_ideal,
    least=_least,
    note=_note,
    terms=("mode strip", "step", "eager", "captured", "idle", "paused"),
)
