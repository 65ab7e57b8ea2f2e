"""A page over the board: a title, lines, and any of esc, q or its own key to close it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ..lines import Line, plain

if TYPE_CHECKING:
    from textual.app import ComposeResult


class Page(ModalScreen[None]):
    """Lines to read. The board goes on below."""

    DEFAULT_CSS = """
    Page { align: center middle; }
    Page VerticalScroll {
        width: 100%; max-width: 104; height: auto; max-height: 100%;
        background: $background; border: round $primary; padding: 0 1; scrollbar-size-vertical: 1;
        border-title-color: $primary;
    }
    Page Static { width: 1fr; height: auto; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,e,question_mark,enter,space", "close", "close"),
        Binding("down,j", "down", show=False),
        Binding("up,k", "up", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("home", "edge(-1)", show=False),
        Binding("end", "edge(1)", show=False),
    ]

    def __init__(self, title: str, lines: Iterable[Line], styles: Mapping[str, Style]) -> None:
        super().__init__()
        self._title = title
        self._lines = list(lines)
        self._styles = styles

    def compose(self) -> ComposeResult:
        """One scroll of text."""
        text = Text(no_wrap=False)
        fallback = self._styles.get("", Style())
        for line in self._lines:
            for piece, word in line:
                text.append(piece, self._styles.get(word, fallback))
            text.append("\n")
        scroll = VerticalScroll(Static(text, markup=False))
        scroll.border_title = f" {self._title} "
        scroll.border_subtitle = " esc closes · ↑ ↓ PgUp PgDn scroll "
        yield scroll

    def text(self) -> str:
        """What stands on the page."""
        return "\n".join(plain(line) for line in self._lines)

    def action_close(self) -> None:
        """Back to the board."""
        self.dismiss(None)

    def action_down(self) -> None:
        """Scroll down."""
        self.query_one(VerticalScroll).scroll_down(animate=False)

    def action_up(self) -> None:
        """Scroll up."""
        self.query_one(VerticalScroll).scroll_up(animate=False)

    def action_page(self, step: int) -> None:
        """Scroll by a screenful."""
        scroll = self.query_one(VerticalScroll)
        (scroll.scroll_page_down if step > 0 else scroll.scroll_page_up)(animate=False)

    def action_edge(self, step: int) -> None:
        """Scroll to the beginning or the end."""
        scroll = self.query_one(VerticalScroll)
        (scroll.scroll_end if step > 0 else scroll.scroll_home)(animate=False)
