"""The board: panels where the plan puts them, drawn from one look."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.style import Style
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import Layout, WidgetPlacement
from textual.widget import Widget

from .. import keys
from ..lines import Line, fit
from ..look import Look
from ..panels import BY_KEY, PANELS, Panel, findings, header, tiny
from ..panels.base import title_line
from ..plan import Rect, Want, plan
from .panel_view import PanelView

if TYPE_CHECKING:
    from textual.app import ComposeResult

TINY_WIDTH, TINY_HEIGHT = 64, 17
"""Below this, one line a rank and the worst finding is all that fits."""


def wants(look: Look, width: int, height: int) -> list[Want]:
    """What the panels would like on a terminal of this size."""
    out: list[Want] = []
    for panel in PANELS:
        if width < panel.from_width or height < panel.from_height or not panel.shown(look):
            continue
        # Height depends a little on width; most panels have half the terminal or all of it.
        likely = width if panel.min_width * 2 > width else width // 2
        least = panel.least(look, likely)
        out.append(
            Want(
                key=panel.key,
                row=panel.row,
                priority=panel.priority,
                min_width=panel.min_width,
                min_height=least + 1,
                ideal_height=max(least, panel.ideal(look, likely)) + 1,
                most_height=panel.most + 1 if panel.most else 0,
                weight=panel.weight,
                stretch=panel.stretch,
            )
        )
    return out


def arrange(look: Look, width: int, height: int) -> dict[str, Rect]:
    """Every rectangle of the screen: header, banner, panels, footer; or the tiny screen."""
    if width < TINY_WIDTH or height < TINY_HEIGHT:
        return {"tiny": Rect(0, 0, width, height)}
    out = {"header": Rect(0, 0, width, 1), "footer": Rect(0, height - 1, width, 1)}
    top = 1
    lines = len(header.banner(look, width))
    if lines:
        out["banner"] = Rect(0, 1, width, lines)
        top += lines
    area = Rect(0, top, width, height - 1 - top)
    if look.choices.maximised in BY_KEY:
        out[look.choices.maximised] = area
    else:
        out |= plan(wants(look, width, height), area)
    return out


class _Planned(Layout):
    """Puts each child where the board's plan says."""

    name = "planned"

    def __init__(self, board: Board) -> None:
        self.board = board

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> list[WidgetPlacement]:
        """Placements of the children that are in the plan."""
        out: list[WidgetPlacement] = []
        for child in children:
            rect = self.board.rects.get(child.key) if isinstance(child, PanelView) else None
            region = Region(rect.x, rect.y, rect.width, rect.height) if rect else Region(0, 0, 0, 0)
            out.append(WidgetPlacement(region, NULL_OFFSET, NULL_SPACING, child))
        return out


class Board(Widget):
    """All panels. ``show`` plans anew only when a panel's wish or the size changed."""

    DEFAULT_CSS = "Board { width: 1fr; height: 1fr; background: $background; }"

    def __init__(self) -> None:
        super().__init__(id="board")
        self._planned = _Planned(self)
        self._views: dict[str, PanelView] = {}
        self.rects: dict[str, Rect] = {}
        self.failures: dict[str, str] = {}
        """Panel → why its last drawing failed."""

    @property
    def layout(self) -> Layout:
        """Own layout: absolute, from the plan."""
        return self._planned

    def compose(self) -> ComposeResult:
        """One view a panel; views outside the plan are hidden."""
        for key in ("header", "banner", *BY_KEY, "footer", "tiny"):
            self._views[key] = PanelView(key)
            yield self._views[key]

    def show(self, look: Look, styles: Mapping[str, Style], stale: Mapping[str, Style]) -> None:
        """Draw ``look``; figures in ``stale`` styles where they are no longer true."""
        width, height = self.size
        if width <= 0 or height <= 0:
            return
        rects = arrange(look, width, height)
        if rects != self.rects:
            self.rects = rects
            for key, view in self._views.items():
                view.display = key in rects
            # The views get their new sizes at the layout that follows; then this look is drawn into them.
            self.refresh(layout=True)
            self.call_after_refresh(self._draw, look, styles, stale)
        else:
            self._draw(look, styles, stale)

    def _draw(self, look: Look, styles: Mapping[str, Style], stale: Mapping[str, Style]) -> None:
        for key, rect in self.rects.items():
            chrome = key in ("header", "banner", "footer", "tiny")
            lines = self._lines(key, rect, look)
            self._views[key].show(lines, styles if chrome or key == "findings" or not look.stale else stale)

    def _lines(self, key: str, rect: Rect, look: Look) -> Sequence[Line]:
        """Lines of one view. A panel that fails says so in its own place; the others go on."""
        try:
            lines = draw_view(key, rect, self.rects, look)
            self.failures.pop(key, None)
            return lines
        except Exception as error:
            if os.environ.get("SGTOP_DEBUG"):
                raise
            self.failures[key] = f"{type(error).__name__}: {error}"
            return [((f" {key}: sgtop could not draw this ({self.failures[key]}); SGTOP_DEBUG=1 shows where", "warn"),)]

    def text(self) -> list[str]:
        """The screen as text, a string a line."""
        width, height = self.size
        grid = [[" "] * width for _ in range(height)]
        for key, rect in self.rects.items():
            for dy, text in enumerate(self._views[key].text()):
                for dx, char in enumerate(text[: rect.width]):
                    grid[rect.y + dy][rect.x + dx] = char
        return ["".join(row) for row in grid]


def draw_view(key: str, rect: Rect, rects: Mapping[str, Rect], look: Look) -> Sequence[Line]:
    """The lines of one view of the plan."""
    if key == "header":
        return [header.header(look, rect.width)]
    if key == "banner":
        return header.banner(look, rect.width)
    if key == "footer":
        return [keys.footer(rect.width, look.snap.window_s, look.choices.readonly)]
    if key == "tiny":
        return tiny.draw(look, rect.width, rect.height)
    return _panel(BY_KEY[key], rect, rects, look)


def _panel(panel: Panel, rect: Rect, rects: Mapping[str, Rect], look: Look) -> list[Line]:
    """Title, lines and the divider to a right-hand neighbour."""
    edge = rect.x + rect.width
    divided = any(r.x == edge and r.y == rect.y for r in rects.values())
    joints = tuple(
        r.x + r.width - 1 - rect.x
        for r in rects.values()
        if r.y + r.height == rect.y and r.x + r.width < _right(rects) and rect.x <= r.x + r.width - 1 < edge
    )
    inner = rect.width - 1 if divided else rect.width
    out = [title_line(panel, look, rect.width, joints, divided)]
    height = rect.height - 1
    for line in panel.draw(look, inner, height)[:height]:
        out.append((*fit(line, inner), ("│", "rule")) if divided else line)
    if divided:
        out += [(*fit((), inner), ("│", "rule"))] * (rect.height - len(out))
    return out


def _right(rects: Mapping[str, Rect]) -> int:
    return max(r.x + r.width for r in rects.values())


__all__ = ["Board", "arrange", "draw_view", "findings"]
