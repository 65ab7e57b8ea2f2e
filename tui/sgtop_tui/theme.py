"""Colours: what each style word of a line looks like, in every theme.

A healthy screen has one accent; amber marks what is out of line; red is for what hurts users now. Colour is never the
only sign: letters, glyphs and words say the same, which is what a screen without colour shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rich.style import Style
from textual.theme import Theme


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme, as #rrggbb."""

    name: str
    dark: bool
    background: str
    surface: str
    text: str
    dim: str
    rule: str
    accent: str
    good: str
    warn: str
    crit: str
    decode: str
    prefill: str
    mixed: str
    verify: str
    draft: str
    eager: str


DEFAULT = Palette(
    name="default", dark=True, background="#101418", surface="#1a2026", text="#d5dbe0", dim="#7f8b96", rule="#3b454f",
    accent="#5cc8c0", good="#5cc8c0", warn="#e6b450", crit="#ff6060",
    decode="#5cc8c0", prefill="#8fa8ff", mixed="#b7a0f0", verify="#7fd28a", draft="#4f9f62", eager="#e6b450",
)  # fmt: skip
BLUE_ORANGE = Palette(
    name="blue-orange", dark=True,
    background="#101418", surface="#1a2026", text="#dfe3e8", dim="#858e99", rule="#3b4350",
    accent="#62a8ff", good="#62a8ff", warn="#ffb454", crit="#ff7a1a",
    decode="#62a8ff", prefill="#c3d7f2", mixed="#8f9fd8", verify="#3f7fd0", draft="#6f8fb5", eager="#ffb454",
)  # fmt: skip
LIGHT = Palette(
    name="light", dark=False, background="#fbfaf7", surface="#efede6", text="#20262c", dim="#68727c", rule="#c4c4bc",
    accent="#00786f", good="#00786f", warn="#9a6300", crit="#c22020",
    decode="#00786f", prefill="#3a55c0", mixed="#7040b0", verify="#2b7a33", draft="#4d8a55", eager="#9a6300",
)  # fmt: skip

PALETTES: dict[str, Palette] = {p.name: p for p in (DEFAULT, BLUE_ORANGE, LIGHT)}
DARKEN = 0.26
"""Strip cells stand on their own colour, mixed this much into the background."""


def mix(a: str, b: str, share: float) -> str:
    """``share`` of colour ``a`` in ``b``."""
    pairs = [(int(a[i : i + 2], 16), int(b[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(x * share + y * (1 - share)):02x}" for x, y in pairs)


@lru_cache(8)
def styles(palette: Palette) -> dict[str, Style]:
    """Style word → style."""
    p = palette

    soft = mix(p.accent, p.background, 0.62)  # large areas of the bright accent would shout on a healthy screen

    def fg(color: str, bold: bool = False) -> Style:
        return Style(color=color, bgcolor=p.background, bold=bold)

    def cell(color: str, bold: bool = False) -> Style:
        return Style(color=color, bgcolor=mix(color, p.background, DARKEN), bold=bold)

    text, strong = fg(p.text), fg(p.text, bold=True)  # one object each: equal neighbours are drawn as one
    return {
        "": text,
        "figure": text,
        "strong": strong,
        "title": strong,
        "dim": fg(p.dim),
        "rule": fg(p.rule),
        "key": fg(p.accent),
        "key.changes": Style(color=p.background, bgcolor=p.warn, bold=True),
        "accent": fg(p.accent, bold=True),
        "good": fg(p.good),
        "warn": fg(p.warn, bold=True),
        "crit": fg(p.crit, bold=True),
        "badge": Style(color=p.background, bgcolor=p.accent, bold=True),
        "command": fg(p.accent),
        "bar": fg(soft),
        "spark": fg(soft),
        "quiet": fg(p.rule),
        "mode.decode": cell(p.decode),
        "mode.prefill": cell(p.prefill),
        "mode.mixed": cell(p.mixed),
        "mode.verify": cell(p.verify),
        "mode.draft": cell(p.draft),
        "mode.eager": cell(p.eager, bold=True),
        "mode.idle": fg(p.rule),
        "mode.other": fg(p.dim),
        "mode.none": fg(p.rule),
    }


@lru_cache(1)
def plain_styles() -> dict[str, Style]:
    """Styles without any colour (NO_COLOR): weight, underline and reverse only."""
    bold, faint, none = Style(bold=True), Style(dim=True), Style()
    out = dict.fromkeys(styles(DEFAULT), none)
    out |= dict.fromkeys(("strong", "title", "accent", "warn", "key", "mode.eager"), bold)
    out |= dict.fromkeys(("dim", "rule", "quiet", "mode.idle"), faint)
    out |= {"crit": Style(bold=True, reverse=True), "badge": Style(bold=True, reverse=True)}
    out |= {"key.changes": Style(bold=True, reverse=True), "command": Style(underline=True)}
    return out


@lru_cache(16)
def stale_styles(palette: Palette | None) -> dict[str, Style]:
    """Styles of figures that are no longer true: all faint. ``None``: without colour."""
    if palette is None:
        return {word: style + Style(dim=True) for word, style in plain_styles().items()}
    faint = Style(color=mix(palette.dim, palette.background, 0.7), bgcolor=palette.background)
    return dict.fromkeys(styles(palette), faint)


def textual_theme(palette: Palette) -> Theme:
    """The palette for Textual's own widgets: pages, palette, input."""
    p = palette
    return Theme(
        name=f"sgtop-{p.name}", dark=p.dark, primary=p.accent, secondary=p.prefill, accent=p.accent, foreground=p.text,
        background=p.background, surface=p.surface, panel=p.surface, success=p.good, warning=p.warn, error=p.crit,
    )  # fmt: skip
