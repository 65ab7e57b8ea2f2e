"""Lines of styled text, and a small pen to write them with. Pure: no Textual, no terminal.

A line is a tuple of (text, style) parts; a style is a word of :mod:`sgtop_tui.theme` such as ``dim`` or ``warn``. Two
lines that look the same are equal, which is how a panel knows that it has nothing to draw.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

Part = tuple[str, str]
Line = tuple[Part, ...]

EMPTY: Line = ()


@lru_cache(8192)
def width_of(text: str) -> int:
    """Cells that ``text`` takes on a terminal."""
    return len(text) if text.isascii() else cell_len(text)


def line_width(line: Line) -> int:
    """Cells that ``line`` takes."""
    return sum(width_of(text) for text, _ in line)


def plain(line: Line) -> str:
    """The text of ``line`` without its styles."""
    return "".join(text for text, _ in line)


def clip(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, with ``…`` where it was cut."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1).rstrip() + "…"


def fit(line: Iterable[Part], width: int, style: str = "") -> Line:
    """``line`` in exactly ``width`` cells: cut with ``…`` or filled up with blanks of ``style``."""
    out: list[Part] = []
    left = width
    for text, part_style in line:
        n = width_of(text)
        if n > left:
            if left > 0:
                cut = clip(text, left)
                out.append((cut, part_style))
                left -= width_of(cut)
            break
        if n:
            out.append((text, part_style))
            left -= n
    if left > 0:
        out.append((" " * left, style))
    return tuple(out)


class Pen:
    """Writes one line from left to right."""

    __slots__ = ("parts", "width")

    def __init__(self, indent: int = 0) -> None:
        self.parts: list[Part] = []
        self.width = 0
        if indent:
            self.put(" " * indent)

    def put(self, text: str, style: str = "") -> Pen:
        """Write ``text``."""
        if text:
            self.parts.append((text, style))
            self.width += width_of(text)
        return self

    def gap(self, cells: int) -> Pen:
        """Leave ``cells`` blank."""
        return self.put(" " * cells) if cells > 0 else self

    def to(self, column: int) -> Pen:
        """Go to ``column``; where it is passed already, leave one blank."""
        return self.gap(column - self.width if column > self.width else 1)

    def cell(self, text: str, width: int, style: str = "", left: bool = False) -> Pen:
        """Write ``text`` into a cell of ``width``, to its right edge unless ``left``."""
        n = width_of(text)
        if n > width:
            text = clip(text, width)
            n = width_of(text)
        if n < width:
            text = text + " " * (width - n) if left else " " * (width - n) + text
        self.parts.append((text, style))
        self.width += width
        return self

    def add(self, parts: Iterable[Part], width: int) -> bool:
        """Write ``parts`` if they end before ``width``; whether they were written."""
        parts = tuple(parts)
        if self.width + line_width(parts) > width:
            return False
        for text, style in parts:
            self.put(text, style)
        return True

    def right(self, parts: Line, width: int) -> Pen:
        """Write ``parts`` so that they end at column ``width``; leave them out where they do not fit."""
        need = line_width(parts)
        if self.width + need + 1 > width and self.width:
            return self
        self.gap(width - need - self.width)
        for text, style in parts:
            self.put(text, style)
        return self

    def parts_of(self, line: Line) -> Line:
        """What was written, with ``line`` after it."""
        return (*self.parts, *line)

    def line(self) -> Line:
        """What was written."""
        return tuple(self.parts)


def _head(text: str, width: int) -> str:
    """The longest beginning of ``text`` in ``width`` cells, one character at least."""
    used = 0
    for i, char in enumerate(text):
        used += width_of(char)
        if used > width and i:
            return text[:i]
    return text


def wrap(text: str, width: int, first: int = 0) -> list[str]:
    """``text`` broken at blanks into pieces of at most ``width`` cells, the first of at most ``width - first``."""
    out: list[str] = []
    current, room = "", max(1, width - first)
    for word in text.split():
        while width_of(word) > max(room, width):
            if current:
                out.append(current)
                current, room = "", width
            head = _head(word, room)
            out.append(head)
            word = word[len(head) :]
            room = width
        if current and width_of(current) + 1 + width_of(word) <= room:
            current += " " + word
        elif not current and width_of(word) <= room:
            current = word
        else:
            out.append(current)
            current, room = word, width
    if current or not out:
        out.append(current)
    return out


def flow(groups: Iterable[Line], width: int, between: int = 3, indent: int = 1) -> list[Line]:
    """Set ``groups`` side by side, ``between`` blanks apart, and go to the next line where the width ends."""
    out: list[Line] = []
    pen = Pen(indent)
    for group in groups:
        need = line_width(group)
        if pen.width > indent and pen.width + between + need > width:
            out.append(pen.line())
            pen = Pen(indent)
        if pen.width > indent:
            pen.gap(between)
        for text, style in group:
            pen.put(text, style)
    if pen.width > indent:
        out.append(pen.line())
    return out
