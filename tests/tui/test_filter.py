"""The filter: every panel whose rows it chooses says what it did, above all where it found nothing."""

from __future__ import annotations

import pytest
from sgtop_tui.lines import line_width, plain
from sgtop_tui.look import Choices, Look
from sgtop_tui.panels import BY_KEY
from sgtop_tui.panels.base import title_line

from . import scenes
from .app_driver import running, screen_text

FILTERED = ("ranks", "cpu", "findings", "kernels")


def title(panel: str, look: Look, width: int = 80) -> str:
    line = title_line(BY_KEY[panel], look, width)
    assert line_width(line) == width
    return plain(line)


def look(scene: str, text: str) -> Look:
    return Look(scenes.SCENES[scene](0), Choices(filter=text))


@pytest.mark.parametrize("scene", scenes.SCENES)
@pytest.mark.parametrize("panel", FILTERED)
def test_where_nothing_matches_it_is_said(panel: str, scene: str) -> None:
    """And the rows stay: a text may be meant for another panel."""
    shown, all_ = look(scene, "zzz"), look(scene, "")
    has_rows = {"findings": bool(all_.alerts), "kernels": all_.focus is not None and all_.focus.tracing is not None}
    assert ("nothing matches 'zzz', all shown" in title(panel, shown)) == has_rows.get(panel, bool(all_.ranks))
    assert "nothing" not in title(panel, all_)
    assert "filter" not in title(panel, all_)
    assert BY_KEY[panel].draw(shown, 80, 12) == BY_KEY[panel].draw(all_, 80, 12)


@pytest.mark.parametrize(
    ("panel", "scene", "text"),
    [
        ("ranks", "straggler-tp8", "tp5"),
        ("ranks", "hung", "HUNG"),
        ("cpu", "straggler-tp8", "TP5"),
        ("findings", "eager-and-stolen", "dockerd"),
        ("findings", "straggler-tp8", "60%"),
        ("kernels", "speculative", "attention"),
        ("kernels", "speculative", "allreduce"),
    ],
)
def test_where_something_matches_the_title_names_the_filter(panel: str, scene: str, text: str) -> None:
    assert f"filter {text!r}" in title(panel, look(scene, text))
    assert "nothing" not in title(panel, look(scene, text))


def test_a_table_of_kernels_without_a_match_says_so_beside_one_with() -> None:
    shown = look("speculative", "allreduce")
    assert shown.focus is not None
    assert shown.focus.tracing is not None
    decode, extend = ([plain(line) for line in BY_KEY["kernels"].draw(shown, 120, 30)][i:] for i in (2, 4))
    assert "ncclDevKernel_AllReduce" in decode[1]
    assert "EXTEND" in extend[0]
    assert extend[1].strip() == "nothing matches 'allreduce'"


async def test_a_filter_that_matches_nothing_is_said_while_it_is_typed() -> None:
    async with running(scenes.straggler(0), (80, 24)) as (app, pilot):
        await pilot.press("slash", *"zzz", "enter")
        await pilot.pause()
        assert screen_text(app).count("nothing matches 'zzz', all shown") >= 2
