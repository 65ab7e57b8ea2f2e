"""Where panels stand: pure arithmetic from the terminal's size and what each panel wants.

Panels of one ``row`` stand side by side. Each row gets its least height first, most important rows first; what is left
goes to rows in the order of their priority until each has what it would like, then to those that can use more, evenly,
and the rest to the row that can use any amount. A row that does not fit is left out, so a small terminal still shows
what matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rect:
    """Cells: left, top, width, height."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Want:
    """What one panel would like."""

    key: str
    row: int
    priority: int
    """1 is the most important."""
    min_width: int
    min_height: int
    ideal_height: int
    most_height: int = 0
    """More than this would be blank; 0: the ideal."""
    weight: float = 1.0
    """Share of its row's width."""
    stretch: bool = False
    """It can use any height that is left."""


def plan(wants: Sequence[Want], area: Rect) -> dict[str, Rect]:
    """A rectangle for every panel that fits into ``area``."""
    rows: dict[int, list[Want]] = {}
    for want in wants:
        rows.setdefault(want.row, []).append(want)
    placed = {row: _columns(members, area.width) for row, members in rows.items()}
    heights = _heights({row: tuple(w for w, _ in columns) for row, columns in placed.items() if columns}, area.height)
    out: dict[str, Rect] = {}
    y = area.y
    for row in sorted(heights):
        x = area.x
        for want, width in placed[row]:
            out[want.key] = Rect(x, y, width, heights[row])
            x += width
        y += heights[row]
    return out


def _columns(members: Sequence[Want], width: int) -> list[tuple[Want, int]]:
    """Members of a row with their widths; the least important go until the others have their least width."""
    kept = list(members)
    while len(kept) > 1 and sum(w.min_width for w in kept) > width:
        kept.remove(max(kept, key=lambda w: w.priority))
    spare = max(0, width - sum(w.min_width for w in kept))
    total = sum(w.weight for w in kept)
    widths = [w.min_width + int(spare * w.weight / total) for w in kept]
    if widths:
        widths[-1] += width - sum(widths)
    return list(zip(kept, widths, strict=True))


def _heights(rows: Mapping[int, Sequence[Want]], height: int) -> dict[int, int]:
    by_priority = sorted(rows, key=lambda row: min(w.priority for w in rows[row]))
    out: dict[int, int] = {}
    left = height
    for row in by_priority:
        least = max(w.min_height for w in rows[row])
        if least <= left:
            out[row] = least
            left -= least
    for row in by_priority:
        if row in out and left:
            more = min(left, max(0, max(w.ideal_height for w in rows[row]) - out[row]))
            out[row] += more
            left -= more
    growing = [row for row in sorted(out) if any(w.most_height for w in rows[row])]
    while growing and left:
        growing = [row for row in growing if out[row] < max(w.most_height for w in rows[row])]
        for row in growing[:left]:
            out[row] += 1
            left -= 1
    stretchable = [row for row in by_priority if row in out and any(w.stretch for w in rows[row])]
    if stretchable and left:
        out[stretchable[0]] += left
    elif out and left:
        out[max(out)] += left
    return out
