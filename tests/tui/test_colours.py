"""Red only for what hurts users now; a healthy screen is calm; colour is never the only sign."""

from __future__ import annotations

import pytest
from sgtop_core.model.snapshot import Snapshot
from sgtop_tui import board, theme
from sgtop_tui.lines import Line, plain
from sgtop_tui.look import Look

from .scenes import SCENES

SIZES = ((40, 10), (80, 24), (120, 40), (200, 60))
HEALTHY = ("no-traffic", "prefill-bound", "decode-bound", "speculative", "no-gpu")
ALARMING = {"warn", "crit", "mode.eager", "key.changes"}


def drawn(snapshot: Snapshot, size: tuple[int, int]) -> list[Line]:
    look = Look(snapshot)
    rects = board.arrange(look, *size)
    return [line for key in rects for line in board.draw(key, rects, look)]


def styles_in(lines: list[Line]) -> set[str]:
    return {style for line in lines for text, style in line if text.strip()}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", HEALTHY)
def test_a_healthy_screen_is_calm(scene: str, size: tuple[int, int]) -> None:
    assert not styles_in(drawn(SCENES[scene](0), size)) & ALARMING


@pytest.mark.parametrize("size", SIZES)
def test_red_where_users_suffer(size: tuple[int, int]) -> None:
    assert "crit" in styles_in(drawn(SCENES["eager-and-stolen"](0), size))
    assert "crit" in styles_in(drawn(SCENES["hung"](0), size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", ["straggler-tp8", "lost", "waiting", "agentless", "starting"])
def test_no_red_for_what_only_concerns_sgtop_or_may_hurt_later(scene: str, size: tuple[int, int]) -> None:
    assert "crit" not in styles_in(drawn(SCENES[scene](0), size))


@pytest.mark.parametrize("scene", SCENES)
def test_colour_is_never_the_only_sign(scene: str) -> None:
    """Whatever is amber or red has a word, a letter or a glyph of its own."""
    for line in drawn(SCENES[scene](0), (200, 60)):
        if any(style in ("warn", "crit") and set(text) <= set("█▉▊▋▌▍▎▏ ") for text, style in line):
            assert any(char.isalpha() for char in plain(line)), plain(line)


@pytest.mark.parametrize("palette", theme.PALETTES.values(), ids=lambda p: p.name)
def test_every_style_word_is_in_every_theme(palette: theme.Palette) -> None:
    used = {style for scene in SCENES.values() for size in SIZES for style in styles_in(drawn(scene(0), size))}
    for sheet in (theme.styles(palette), theme.plain_styles(), theme.stale_styles(palette), theme.stale_styles(None)):
        assert used <= set(sheet)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", theme.PALETTES.values(), ids=lambda p: p.name)
def test_words_can_be_read(palette: theme.Palette) -> None:
    """WCAG contrast: 4.5 for what must be read, 3 for what may be skipped."""
    for colour in (palette.text, palette.accent, palette.warn, palette.crit, palette.eager):
        assert _contrast(colour, palette.background) >= 4.5, colour
    assert _contrast(palette.dim, palette.background) >= 3.0
    for colour in (palette.decode, palette.prefill, palette.mixed, palette.verify, palette.draft, palette.eager):
        assert _contrast(colour, theme.mix(colour, palette.background, theme.DARKEN)) >= 2.5, colour
