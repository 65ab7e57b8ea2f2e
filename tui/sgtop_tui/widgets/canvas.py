"""The one widget of the main screen: it shows the board and repaints only the cells that changed."""

from __future__ import annotations

from collections.abc import Mapping

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..board import CHROME, arrange, draw
from ..glyphs import to_ascii
from ..lines import Line, plain, width_of
from ..look import Look
from ..plan import Rect

Styles = Mapping[str, Style]


class Canvas(Widget):
    """Draws looks. One widget, not one a panel: Textual's cost goes by widgets, and the board has its own layout.

    Lines already hold every style and glyph, so strips go to the compositor as they are: Textual's own styling of a
    widget's lines (borders, filters, background) would be done for nothing four times a second.
    """

    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"

    def __init__(self, ascii_only: bool = False) -> None:
        super().__init__(id="board")
        self._ascii = ascii_only
        self._styles: tuple[Styles, Styles] = ({}, {})
        self._shown: tuple[Look, Styles, Styles] | None = None
        self._open: set[int] = set()
        """Identities of styles that look the same on blanks as no style does."""
        self._stale = False
        self._lines: dict[str, list[Line]] = {}
        self._rows: list[list[str]] = []
        """Keys of the rectangles that each screen line crosses, left to right."""
        self._strips: dict[int, Strip] = {}
        self.rects: dict[str, Rect] = {}

    def show(self, look: Look, styles: Styles, stale: Styles) -> int:
        """Show ``look``; figures that are no longer true in ``stale`` styles. The number of lines that changed."""
        self._shown = (look, styles, stale)
        width, height = self.size
        if width <= 0 or height <= 0:
            return 0
        rects = arrange(look, width, height)
        lines = {key: draw(key, rects, look) for key in rects}
        whole = (
            rects != self.rects
            or styles is not self._styles[0]
            or stale is not self._styles[1]
            or look.stale != self._stale
            or len(self._rows) != height
        )
        old = self._lines
        self._lines, self._styles, self._stale = lines, (styles, stale), look.stale
        if whole:
            self.rects = rects
            self._open = {id(s) for sheet in (styles, stale) for s in sheet.values() if _is_open(s, sheet[""])}
            self._strips.clear()
            left_to_right = sorted(rects, key=lambda key: rects[key].x)
            self._rows = [
                [k for k in left_to_right if rects[k].y <= y < rects[k].y + rects[k].height] for y in range(height)
            ]
            self.refresh()
            return height
        dirty: list[Region] = []
        for key, rect in rects.items():
            for dy, (new, was) in enumerate(zip(lines[key], old[key], strict=True)):
                if new != was:
                    x, n = changed(was, new)
                    dirty.append(Region(rect.x + x, rect.y + dy, n, 1))
                    self._strips.pop(rect.y + dy, None)
        if dirty:
            self.refresh(*dirty)
        return len(dirty)

    def on_resize(self) -> None:
        """The same look in the new size."""
        if self._shown is not None:
            self.show(*self._shown)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Strips of the lines in ``crop``; kept until a line changes."""
        return [self._strip(y).crop(crop.x, crop.right) for y in crop.line_range]

    def _strip(self, y: int) -> Strip:
        strip = self._strips.get(y)
        if strip is not None:
            return strip
        if y >= len(self._rows):
            return Strip.blank(self.size.width)
        # Neighbours of one style become one segment, and blanks join what stands before them where that has no ground
        # or underline of its own: half the segments, and half the bytes to the terminal.
        segments: list[Segment] = []
        pending, style, open_ = "", None, False
        live, stale = self._styles
        for key in self._rows[y]:
            styles = stale if self._stale and key not in CHROME and key != "findings" else live
            fallback = styles[""]
            for text, word in self._lines[key][y - self.rects[key].y]:
                own = styles.get(word, fallback)
                if own is style or (open_ and text.isspace()):
                    pending += text
                    continue
                if pending:
                    segments.append(Segment(pending, style))
                pending, style = text, own
                open_ = id(own) in self._open
        if pending:
            segments.append(Segment(pending, style))
        if self._ascii:
            segments = [Segment(to_ascii(s.text), s.style) for s in segments]
        strip = self._strips[y] = Strip(segments, self.size.width)
        return strip

    def text(self) -> list[str]:
        """What stands on it, a string a line, without styles."""
        return ["".join(plain(self._lines[k][y - self.rects[k].y]) for k in keys) for y, keys in enumerate(self._rows)]


def _is_open(style: Style, plain_style: Style) -> bool:
    return style.bgcolor == plain_style.bgcolor and not style.underline and not style.reverse


def changed(old: Line, new: Line) -> tuple[int, int]:
    """(column, cells) that covers every cell in which two lines of one width differ.

    Works on whole parts: cheap, and parts are short.
    """
    start = i = 0
    while i < len(old) and i < len(new) and old[i] == new[i]:
        start += width_of(new[i][0])
        i += 1
    end = sum(width_of(text) for text, _ in new)
    a, b = len(old) - 1, len(new) - 1
    while a > i and b > i and old[a] == new[b]:
        end -= width_of(new[b][0])
        a -= 1
        b -= 1
    return start, max(1, end - start)
