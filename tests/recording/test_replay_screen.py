"""The screen over a recording: its bar, and what its keys do."""

from __future__ import annotations

from pathlib import Path

import pytest
from sgtop_core.recording.replay import Position, ReplaySession
from sgtop_tui.replay_app import ReplayApp, bar

from tests.recording.live import Live


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Live("eager-fallback").run(9.0).write(tmp_path_factory.mktemp("screen") / "x.sgtop")


def test_the_bar_says_where_it_stands() -> None:
    p = Position(15.0, 60.0, 2.0, False, False, 0)
    line = bar(p, [(30.0, "critical")], 100).plain
    assert line.startswith("   ▶   15.0 of 60.0 s ")
    track = [c for c in line if c in "━●─▲"]
    assert track.index("●") / len(track) == pytest.approx(0.25, abs=0.03)
    assert track.index("▲") / len(track) == pytest.approx(0.5, abs=0.03)
    assert "2×" in line
    assert len(line) <= 100


@pytest.mark.parametrize("width", [20, 40, 80, 120, 250])
@pytest.mark.parametrize("at", [0.0, 30.0, 60.0])
def test_the_bar_fits(width: int, at: float) -> None:
    paused = Position(at, 60.0, 1.0, True, False, 3)
    assert len(bar(paused, [(0.0, "info"), (60.0, "warning")], width).plain) <= max(width, 45)
    plain = bar(paused, [(10.0, "warning")], width, ascii_only=True).plain
    assert plain.isascii()
    assert "3 damaged" in plain
    assert "||" in plain


def test_an_empty_recording_has_a_bar() -> None:
    assert "end" in bar(Position(0.0, 0.0, 1.0, False, True, 0), [(0.0, "info")], 80).plain


async def test_keys(recorded: Path) -> None:
    player = ReplaySession(recorded)
    app = ReplayApp(player, poll=False)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            app.feed(player.snapshot())
            await pilot.press("p")
            assert player.position().paused
            await pilot.press("right")
            await app.workers.wait_for_complete()
            assert player.position().at_s == pytest.approx(5.0, abs=1.2)
            await pilot.press("home")
            await app.workers.wait_for_complete()
            assert player.position().at_s < 1.0
            await pilot.press("greater_than_sign")
            assert player.position().speed == 2.0
            await pilot.press("less_than_sign", "less_than_sign")
            assert player.position().speed == 0.5
            await pilot.press("n")
            await app.workers.wait_for_complete()
            assert any(a.active for a in player.snapshot().alerts)
            app._show_bar()
            await pilot.pause()
            assert any(severity for severity in (f.severity for f in app._found))
            here = player.position().at_s
            await pilot.press("N")
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert player.position().at_s == here, "there is no long gap"
            assert [n.message for n in app._notifications] == ["no long gap between steps after this"]
            await pilot.press("R")  # there is nothing to record here: said, not done
            await app.workers.wait_for_complete()
            assert not app._choices.recording
    finally:
        player.stop()
