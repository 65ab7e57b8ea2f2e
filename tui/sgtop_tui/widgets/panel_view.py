"""A widget that shows lines and repaints only the cells that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..lines import Line, fit, plain, width_of


class PanelView(Widget):
    """Lines of styled text. ``show`` compares with what stands there and repaints the difference."""

    DEFAULT_CSS = "PanelView { background: $background; }"

    def __init__(self, key: str) -> None:
        super().__init__(id=f"panel-{key}")
        self.key = key
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}
        self._styles: Mapping[str, Style] = {}

    def show(self, lines: Sequence[Line], styles: Mapping[str, Style]) -> int:
        """Show ``lines``, filled up or cut to the widget's size; the number of lines that changed."""
        width, height = self.size
        new = [fit(line, width) for line in lines[:height]]
        new += [fit((), width)] * (height - len(new))
        if styles is not self._styles or len(new) != len(self._lines):
            self._styles, self._lines, self._strips = styles, new, {}
            self.refresh()
            return len(new)
        dirty: list[Region] = []
        for y, (line, old) in enumerate(zip(new, self._lines, strict=True)):
            if line != old:
                self._strips.pop(y, None)
                x, n = changed(old, line)
                dirty.append(Region(x, y, n, 1))
        self._lines = new
        if dirty:
            self.refresh(*dirty)
        return len(dirty)

    def text(self) -> list[str]:
        """What stands on it, without styles."""
        return [plain(line) for line in self._lines]

    def render_line(self, y: int) -> Strip:
        """One line as a strip; kept until the line changes."""
        strip = self._strips.get(y)
        if strip is None:
            if y >= len(self._lines):
                return Strip.blank(self.size.width)
            styles = self._styles
            fallback = styles.get("")
            segments = [Segment(text, styles.get(word, fallback)) for text, word in self._lines[y]]
            strip = Strip(segments, sum(width_of(text) for text, _ in self._lines[y]))
            self._strips[y] = strip
        return strip


def changed(old: Line, new: Line) -> tuple[int, int]:
    """(column, cells) that covers every cell in which two lines of one width differ.

    Works on whole parts: cheap, and parts are short.
    """
    start = i = 0
    while i < len(old) and i < len(new) and old[i] == new[i]:
        start += width_of(new[i][0])
        i += 1
    total = sum(width_of(text) for text, _ in new)
    end = total
    a, b = len(old) - 1, len(new) - 1
    while a > i and b > i and old[a] == new[b]:
        end -= width_of(new[b][0])
        a -= 1
        b -= 1
    return start, max(1, end - start)
