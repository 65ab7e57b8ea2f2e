"""What ctrl+p lists: everything that a key does, every panel and every theme, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from textual.app import SystemCommand
from textual.markup import escape

from . import keys, theme
from .panels import PANELS


def palette_commands(
    run: Callable[[str], Callable[[], None]], set_theme: Callable[[str], None]
) -> Iterator[SystemCommand]:
    """``run``: name of an action → what runs it; ``set_theme`` takes a name in :data:`theme.PALETTES`."""
    for key in keys.KEYS:
        if key.action in ("command_palette", "step_back") or key.key == "ctrl+c":
            continue
        yield SystemCommand(key.label.capitalize(), escape(f"{key.help} ({key.shown})"), run(key.action))
    for panel in PANELS:
        yield SystemCommand(f"Panel: {panel.title}", "make this panel large", run(f"maximise('{panel.key}')"))
    for name in theme.PALETTES:
        yield SystemCommand(f"Theme: {name}", "colours of the screen", lambda name=name: set_theme(name))
