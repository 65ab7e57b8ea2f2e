"""``--ascii``: every line that leaves for the terminal goes through the table of glyphs, Textual's own widgets too."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ..glyphs import to_ascii


class AsciiFilter(LineFilter):
    """Replaces every glyph by ASCII of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments in ASCII."""
        return [
            segment if segment.text.isascii() else Segment(to_ascii(segment.text), segment.style, segment.control)
            for segment in segments
        ]
