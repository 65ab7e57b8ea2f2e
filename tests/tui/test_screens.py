"""What the screen shows, cell by cell, for every scene at every size.

The expected screens are the text files in ``screens/``: read them, they are the design. After a change that is meant,
``SGTOP_UPDATE_SCREENS=1 pytest tests/tui/test_screens.py`` writes them anew
(and fails, so that nobody forgets to look).
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from sgtop_core.model.snapshot import Snapshot

from .app_driver import Clock, FakeSource, running, screen_text
from .scenes import SCENES, decode_bound, eager_and_stolen, no_gpu

SCREENS = Path(__file__).parent / "screens"
SIZES = ((80, 24), (120, 40), (200, 60))
TINY = ("decode-bound", "eager-and-stolen", "straggler-tp8", "agentless", "lost", "hung", "starting", "no-traffic")


def check(name: str, got: str) -> None:
    """Compare with the expected screen, or write it when asked to."""
    path = SCREENS / f"{name}.txt"
    got = got.rstrip("\n")
    want = path.read_text(encoding="utf-8").rstrip("\n") if path.exists() else ""
    if got == want:
        return
    if os.environ.get("SGTOP_UPDATE_SCREENS"):
        SCREENS.mkdir(exist_ok=True)
        path.write_text(got + "\n", encoding="utf-8")
        pytest.fail(f"{path.name} written; look at it and run again")
    diff = difflib.unified_diff(want.splitlines(), got.splitlines(), "expected", "shown", lineterm="", n=1)
    pytest.fail(f"{path.name} differs:\n" + "\n".join(diff))


async def shown(snapshot: Snapshot, size: tuple[int, int], *keys: str, **options: object) -> str:
    async with running(snapshot, size, **options) as (app, pilot):
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        return screen_text(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("scene", SCENES)
async def test_scene(scene: str, size: tuple[int, int]) -> None:
    check(f"{scene}-{size[0]}x{size[1]}", await shown(SCENES[scene](0), size))


@pytest.mark.parametrize("scene", TINY)
async def test_tiny(scene: str) -> None:
    check(f"{scene}-40x10", await shown(SCENES[scene](0), (40, 10)))


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_frozen(size: tuple[int, int]) -> None:
    clock = Clock()
    async with running(decode_bound(0), size, clock=clock) as (app, pilot):
        await pilot.press("space")
        clock.now += 12
        app.feed(eager_and_stolen(40))
        await pilot.pause()
        check(f"frozen-{size[0]}x{size[1]}", screen_text(app))


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_no_color(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(eager_and_stolen(0), size) as (app, _):
        text = screen_text(app)
        strips = app.screen._compositor.render_strips()
    colours = {c.name for strip in strips for s in strip if s.style for c in (s.style.color, s.style.bgcolor) if c}
    assert colours <= {"default"}, f"NO_COLOR, but {colours}"
    # Nothing is lost with the colours: the same letters and words stand where they did.
    check(f"eager-and-stolen-{size[0]}x{size[1]}", text)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
async def test_ascii(size: tuple[int, int]) -> None:
    text = await shown(eager_and_stolen(0), size, ascii_only=True)
    assert text.isascii()
    check(f"ascii-{size[0]}x{size[1]}", text)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 9])
async def test_maximised(number: int) -> None:
    check(f"maximised-{number}-80x24", await shown(eager_and_stolen(0), (80, 24), str(number)))


async def test_help_page() -> None:
    check("help-80x24", await shown(eager_and_stolen(0), (80, 24), "question_mark"))


async def test_explain_page() -> None:
    check("explain-80x24", await shown(no_gpu(0), (80, 24), "e"))


async def test_read_only() -> None:
    source = FakeSource(decode_bound(0), readonly=True)
    check("readonly-80x24", await shown(decode_bound(0), (80, 24), source=source))


async def test_filter_line() -> None:
    check("filter-80x24", await shown(SCENES["straggler-tp8"](0), (80, 24), "slash", "5"))
