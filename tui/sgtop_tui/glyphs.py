"""The glyphs of the screen and what stands for them in plain ASCII: the one table for both.

Panels always write the Unicode form; ``--ascii`` translates whole lines at the edge, so nothing can be forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

_ASCII = {
    "–": "-", "—": "-", "µ": "u", "·": ".", "…": "~", "×": "x", "≥": ">", "≤": "<", "→": ">", "←": "<", "↑": "^",
    "↓": "v", "▲": "!", "△": "!", "▼": "v", "●": "*", "○": "o", "◐": "~", "◌": "o", "✖": "X", "✓": "+", "‖": "=",
    "─": "-", "━": "=", "│": "|", "┃": "|", "┬": "+", "┴": "+", "┼": "+", "├": "+", "┤": "+", "┌": "+", "┐": "+",
    "└": "+", "┘": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=",
    "▆": "+", "▇": "*", "█": "#", "▏": ".", "▎": ":", "▍": "-", "▌": "=", "▋": "+", "▊": "*", "▉": "#", "▔": "~",
    "▕": "|", "▐": "|", "▀": "~", "“": '"', "”": '"', "’": "'", "‘": "'", "÷": "/", "±": "~", "≈": "~", "°": " ",
    "\u00a0": " ",
}  # fmt: skip
_TABLE = str.maketrans(_ASCII)


def to_ascii(text: str) -> str:
    """``text`` with every glyph replaced by ASCII of the same width; what has no stand-in becomes ``?``."""
    if text.isascii():
        return text
    text = text.translate(_TABLE)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


@dataclass(frozen=True, slots=True)
class ModeGlyph:
    """How a mode looks on the strip."""

    letter: str
    word: str
    style: str


MODES: dict[str, ModeGlyph] = {
    "DECODE": ModeGlyph("D", "decode", "mode.decode"),
    "DECODE eager": ModeGlyph("e", "decode eager", "mode.eager"),
    "EXTEND": ModeGlyph("P", "prefill", "mode.prefill"),
    "MIXED": ModeGlyph("M", "mixed", "mode.mixed"),
    "TARGET_VERIFY": ModeGlyph("V", "verify", "mode.verify"),
    "TARGET_VERIFY eager": ModeGlyph("v", "verify eager", "mode.eager"),
    "DRAFT_EXTEND": ModeGlyph("X", "draft extend", "mode.draft"),
    "DRAFT_EXTEND_V2": ModeGlyph("X", "draft extend", "mode.draft"),
    "SPLIT_PREFILL": ModeGlyph("S", "split prefill", "mode.prefill"),
    "DLLM_EXTEND": ModeGlyph("L", "diffusion", "mode.mixed"),
    "PREBUILT": ModeGlyph("B", "prebuilt", "mode.other"),
    "IDLE": ModeGlyph("i", "DP idle", "mode.idle"),
    "idle": ModeGlyph("·", "idle", "mode.idle"),
    "paused": ModeGlyph("‖", "paused", "mode.other"),
}
"""SGLang's ForwardMode names (and the two states of a scheduler without one) → how they look."""

UNKNOWN_MODE = ModeGlyph("?", "other mode", "mode.other")
NOTHING = ModeGlyph(" ", "not known", "mode.none")


def mode_glyph(mode: str | None, eager: bool = False) -> ModeGlyph:
    """How a cell of the strip looks. A mode that this sgtop does not know is ``?``, never left out."""
    if mode is None:
        return NOTHING
    if eager:
        glyph = MODES.get(f"{mode} eager")
        if glyph is not None:
            return glyph
    return MODES.get(mode, UNKNOWN_MODE)


STATES: dict[str, tuple[str, str]] = {
    "live": ("●", "good"),
    "replay": ("●", "accent"),
    "agentless": ("◌", "warn"),
    "connecting": ("○", "accent"),
    "starting": ("◐", "accent"),
    "waiting": ("○", "warn"),
    "hung": ("▲", "crit"),
    "lost": ("✖", "warn"),
    "elsewhere": ("→", "dim"),
}
"""State of a rank or of the connection → (glyph, style). The word always stands beside it where there is room."""

SEVERITIES: dict[str, tuple[str, str]] = {
    "critical": ("▲", "crit"),
    "warning": ("△", "warn"),
    "info": ("·", "dim"),
}
"""Severity of a finding → (glyph, style)."""
