"""Every key of the screen: the one list from which bindings, footer, help, palette and docs are made.

``changes`` marks what changes the server: it is drawn differently everywhere and refused under ``--readonly``.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import fmt
from .lines import Line, Part


@dataclass(frozen=True, slots=True)
class Key:
    """One key."""

    key: str
    """As Textual names it."""
    shown: str
    """As a person reads it."""
    action: str
    """Action of the app."""
    label: str
    """A word or two for the footer and the palette."""
    help: str
    group: str
    footer: int | None = None
    """Order in the footer; None: not there. Later ones go first when it is narrow."""
    changes: bool = False


KEYS: tuple[Key, ...] = (
    Key("q", "q", "leave", "quit", "detach and quit; everything sgtop did to the server is undone", "leave", 1),
    Key("ctrl+c", "ctrl+c", "leave", "quit", "the same", "leave"),
    Key("question_mark", "?", "help", "help", "this page", "look", 2),
    Key("e", "e", "explain", "explain", "what the numbers mean, how they are measured, why some are –", "look", 3),
    Key("space", "space", "freeze", "freeze", "hold the screen still; collection goes on", "look", 4),
    Key("escape", "esc", "step_back", "back", "back from a large panel, a filter or a page", "look"),
    Key("left_square_bracket", "[", "window(-1)", "shorter window", "a shorter window: 10 min, 60 s, 5 s", "choose", 6),
    Key("right_square_bracket", "]", "window(1)", "longer window", "a longer window", "choose"),
    Key("k", "k", "kernels", "kernels", "kernel tracing: 1 s in 10 s, then continuous, then off", "act", 9),
    Key("o", "o", "sort", "sort", "order of rank rows: rank, step p99, gap p99, waiting, kv; of kernels", "choose", 7),
    Key(
        "slash",
        "/",
        "filter",
        "filter",
        "show ranks (name or state), findings and kernels that hold a text",
        "choose",
        8,
    ),
    Key("up", "↑", "rank(-1)", "rank before", "the rank that `where the time goes` shows; first the worst", "choose"),
    Key("down", "↓", "rank(1)", "next rank", "the next rank", "choose"),
    Key("R", "R", "record", "record", "record to a file in the working folder; R again ends it", "act", 10),
    Key("S", "S", "save", "save", "save the last five minutes to a file", "act"),
    Key("y", "y", "copy", "copy →", "copy the command of the worst finding to the clipboard", "act"),
    Key("w", "w", "where", "where is it", "where the main thread of the rank is in Python now; reads only", "act"),
    Key("g", "g", "switch('graphs')", "graphs", "turn CUDA graphs off for a while; asks first", "change", changes=True),
    Key(
        "r", "r", "switch('radix')", "radix", "turn the radix cache off for a while; asks first", "change", changes=True
    ),
    Key("a", "a", "switch('actions')", "actions", "flush cache, freeze heap, pin; asks first", "change", changes=True),
    Key("ctrl+p", "ctrl+p", "command_palette", "palette", "all commands by name", "look"),
)
"""In the order of the help page."""

GROUPS = {"look": "Look", "choose": "Choose", "act": "Act", "change": "Change the server", "leave": "Leave"}


PLAYER: tuple[Key, ...] = (
    Key("p", "p", "play_pause", "pause, go on", "stop or go on", "replay"),
    Key("left", "left", "seek(-1)", "5 s back", "five seconds back", "replay"),
    Key("right", "right", "seek(1)", "5 s on", "five seconds on", "replay"),
    Key("home", "home", "begin", "to the beginning", "to the beginning", "replay"),
    Key("less_than_sign", "<", "speed(0.5)", "slower", "half the speed", "replay"),
    Key("greater_than_sign", ">", "speed(2)", "faster", "twice the speed", "replay"),
    Key("n", "n", "next_alert", "next finding", "to the next finding", "replay"),
    Key("N", "N", "next_gap", "next long gap", "to the next long gap between steps", "replay"),
)
"""What the screen over a recording has besides."""


def footer(width: int, window_s: float, readonly: bool = False) -> Line:
    """The last line: keys that matter, as many as fit."""
    shown = [(k.footer, k) for k in KEYS if k.footer is not None and not (k.changes and readonly)]
    items: list[tuple[int, str, str, bool]] = [(order, k.shown, k.label, k.changes) for order, k in shown]
    items = [(5, "1-9", "panel", False), *items]
    out: list[Part] = []
    used = 0
    for _, key, label, changes in sorted(items, key=lambda item: item[0]):
        if key == "[":
            key, label = "[ ]", f"window {fmt.window(window_s)}"
        need = len(key) + len(label) + 3
        if used + need > width:
            break
        out += [(" ", ""), (key, "key.changes" if changes else "key"), (f" {label} ", "dim")]
        used += need
    return tuple(out)
