"""The docs and the screen say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sgtop_tui import docs, glossary, keys
from sgtop_tui.panels import PANELS

from .images import FOLDER, IMAGES, Image, draw, words

DOCS = Path(__file__).parents[2] / "docs"
SCREEN = (DOCS / "screen.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", docs.pages())
def test_pages_made_from_the_program_are_those_of_today(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == docs.pages()[name], "run: python -m sgtop_tui.docs"


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p.key)
def test_every_panel_is_described_and_its_terms_are_explained(panel: object) -> None:
    assert f"### {panel.title}" in SCREEN  # type: ignore[attr-defined]
    assert set(panel.terms) <= set(glossary.BY_NAME)  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", keys.KEYS, ids=lambda k: k.key)
def test_every_key_is_described(key: keys.Key) -> None:
    assert f"| `{key.shown}` |" in SCREEN


def test_every_picture_is_used_and_exists() -> None:
    used = set(re.findall(r"img/([\w.-]+)\.svg", SCREEN + (DOCS.parent / "README.md").read_text(encoding="utf-8")))
    assert used == {image.name for image in IMAGES} == {path.stem for path in FOLDER.glob("*.svg")}


@pytest.mark.parametrize("image", IMAGES, ids=lambda i: i.name)
async def test_every_picture_shows_the_screen_of_today(image: Image) -> None:
    kept = (FOLDER / f"{image.name}.svg").read_text(encoding="utf-8")
    assert words(kept) == words(await draw(image)), "run: python -m tests.tui.images, and look at what changed"


def test_glossary_terms_have_no_orphans() -> None:
    """A term that no panel shows is either in the header or belongs to every screen."""
    of_all = {"cost", "lost", "forward", "hit", "mixed", "accepted"}
    shown = {term for panel in PANELS for term in panel.terms}
    assert {term.name for term in glossary.TERMS} - shown <= of_all


def test_the_length_of_a_step_is_explained_as_it_is_defined() -> None:
    """`e` and docs/numbers.md are read side by side by whoever doubts a figure."""
    numbers = (DOCS / "numbers.md").read_text(encoding="utf-8")
    row = next(line for line in numbers.splitlines() if line.startswith("| `step_ms` |"))
    definition = row.split("|")[2].strip().replace("`", "")
    assert definition.casefold() in glossary.BY_NAME["step"].measured.casefold()
