"""Keys, pages, freezing, failures: the app as a person uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sgtop_core.model.snapshot import Snapshot
from sgtop_tui import board, keys
from sgtop_tui.app import WINDOWS_S, SgtopApp
from sgtop_tui.panels import BY_NUMBER, PANELS
from sgtop_tui.poller import NewSnapshot
from sgtop_tui.replay_app import ReplayApp
from sgtop_tui.screens.page import Page
from textual.binding import Binding
from textual.command import CommandPalette
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Input

from .app_driver import Clock, FakeSource, running, screen_text
from .scenes import SCENES, decode_bound, eager_and_stolen, straggler


def page(app: SgtopApp) -> Page:
    assert isinstance(app.screen, Page)
    return app.screen


async def test_space_freezes_and_collection_goes_on() -> None:
    clock = Clock()
    async with running(decode_bound(0), (80, 24), clock=clock) as (app, pilot):
        before = screen_text(app).splitlines()[1:]
        await pilot.press("space")
        clock.now += 7
        app.feed(eager_and_stolen(3))
        await pilot.pause()
        frozen = screen_text(app).splitlines()
        assert "FROZEN 7.0 s" in frozen[0]
        assert frozen[1:] == before
        await pilot.press("space")
        await pilot.pause()
        assert "FROZEN" not in screen_text(app)
        assert "decode runs eager" in screen_text(app)


@pytest.mark.parametrize("number", BY_NUMBER)
async def test_a_digit_makes_a_panel_large_and_esc_brings_the_rest_back(number: int) -> None:
    async with running(straggler(0), (80, 24)) as (app, pilot):
        small = screen_text(app)
        await pilot.press(str(number))
        await pilot.pause()
        assert set(app.board.rects) == {"header", "footer", BY_NUMBER[number].key}
        await pilot.press("escape")
        await pilot.pause()
        assert screen_text(app) == small
        await pilot.press(str(number), str(number))
        await pilot.pause()
        assert screen_text(app) == small


async def test_large_rank_panel_shows_all_ranks_in_rows() -> None:
    async with running(straggler(0), (80, 24)) as (app, pilot):
        await pilot.press("5")
        await pilot.pause()
        text = screen_text(app)
        assert all(f" TP{i} ●" in text for i in range(8))


async def test_o_walks_through_orders_of_ranks() -> None:
    async with running(straggler(0), (120, 60)) as (app, pilot):
        first = [line for line in screen_text(app).splitlines() if line.startswith(" TP")]
        assert first[0].startswith(" TP0")
        await pilot.press("o", "o")
        await pilot.pause()
        assert "sorted by gap p99" in screen_text(app)
        rows = [line for line in screen_text(app).splitlines() if line.startswith(" TP")]
        assert rows[0].startswith(" TP5")
        await pilot.press("o", "o", "o")
        await pilot.pause()
        assert "sorted by" not in screen_text(app)


async def test_filter_keeps_matching_ranks_and_esc_clears_it() -> None:
    async with running(straggler(0), (120, 60)) as (app, pilot):
        await pilot.press("slash", *"tp3")
        await pilot.pause()
        rows = [line for line in screen_text(app).splitlines() if line.startswith((" TP", "TP"))]
        assert {row.split()[0] for row in rows} == {"TP3"}
        await pilot.press("enter")
        await pilot.pause()
        assert not app.screen.query_one("#filter", Input).has_class("open")
        assert "filter 'tp3'" in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "TP7" in screen_text(app)


async def test_keys_typed_into_the_filter_are_text() -> None:
    async with running(straggler(0), (120, 40)) as (app, pilot):
        await pilot.press("slash", "q", "e", "space", "1")
        await pilot.pause()
        assert app.is_running
        assert app.screen.query_one("#filter", Input).value == "qe 1"
        assert app.board.rects.keys() > {"modes", "findings"}


async def test_brackets_choose_the_window() -> None:
    source = FakeSource(decode_bound(0))
    async with running(decode_bound(0), (80, 24), source=source) as (_, pilot):
        await pilot.press("right_square_bracket", "right_square_bracket", "right_square_bracket", "left_square_bracket")
        await pilot.pause()
        assert source.windows == [5.0, 60.0, 600.0, 600.0, 60.0]
        assert WINDOWS_S == (5.0, 60.0, 600.0)


async def test_arrows_choose_the_rank_that_is_explained() -> None:
    async with running(straggler(0), (80, 24)) as (app, pilot):
        assert "TP5, most gaps" in screen_text(app)
        await pilot.press("down", "down")
        await pilot.pause()
        assert "TP1 · 5 s" in screen_text(app)
        assert "waiting for TP5" in screen_text(app)
        await pilot.press("up", "up")
        await pilot.pause()
        assert "TP5, most gaps" in screen_text(app)


async def test_help_has_every_key_and_panel() -> None:
    async with running(decode_bound(0), (80, 24)) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        text = page(app).text()
        for key in keys.KEYS:
            assert key.help in " ".join(text.split()) or key.help in text
        for panel in PANELS:
            assert panel.title in text
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, Page)


@pytest.mark.parametrize("way", ["question_mark", "e"])
async def test_pages_scroll_by_every_key_that_people_try(way: str) -> None:
    async with running(decode_bound(0), (80, 24)) as (app, pilot):
        await pilot.press(way)
        await pilot.pause()
        scroll = app.screen.query_one(VerticalScroll)
        seen = []
        for key in ("down", "j", "up", "k", "pagedown", "pagedown", "pageup", "end", "home"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(scroll.scroll_offset.y)
        page_ = seen[4]
        assert seen[:4] == [1, 2, 1, 0]
        assert 15 < page_ < 24
        assert seen[6] < seen[5] <= seen[7] == scroll.max_scroll_y
        assert seen[8] == 0
        assert "PgDn" in screen_text(app)
        assert isinstance(app.screen, Page), "no key closed it"


def test_the_help_of_a_replay_has_its_keys_and_no_others() -> None:
    bound = {(b.key, b.action) for b in ReplayApp.BINDINGS if isinstance(b, Binding)}
    assert {(key.key, key.action) for key in keys.PLAYER} == bound
    assert not {key.shown for key in keys.PLAYER} & {key.shown for key in keys.KEYS}


@pytest.mark.parametrize("size", [(80, 24), (64, 17)])
async def test_the_keys_of_a_replay_are_seen_without_scrolling(size: tuple[int, int]) -> None:
    async with running(decode_bound(0), size) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        text = screen_text(app)
        for key in keys.PLAYER:
            assert f"{key.shown} {key.label}" in text


async def test_the_board_goes_on_below_a_page() -> None:
    async with running(decode_bound(0), (80, 24)) as (app, pilot):
        await pilot.press("question_mark")
        app.feed(eager_and_stolen(0))
        await pilot.pause()
        assert any("decode runs eager" in line for line in app.board.text())
        await pilot.press("q")
        await pilot.pause()
        assert app.is_running, "q closes the page first"
        assert "decode runs eager" in screen_text(app)


async def test_explain_says_why_figures_are_unknown_and_explains_what_is_on_screen_first() -> None:
    async with running(SCENES["agentless"](0), (80, 24)) as (app, pilot):
        await pilot.press("e")
        await pilot.pause()
        text = page(app).text()
        assert "Agentless: no permission to ptrace" in " ".join(text.split())
        assert text.index("mode strip") < text.index("latched") < text.index("cost")


async def test_explain_of_a_large_panel_begins_with_its_terms() -> None:
    async with running(decode_bound(0), (80, 24)) as (app, pilot):
        await pilot.press("4", "e")
        await pilot.pause()
        assert page(app).text().startswith("in forwards")


async def test_explain_shows_findings_in_full() -> None:
    async with running(eager_and_stolen(0), (40, 10)) as (app, pilot):
        await pilot.press("e")
        await pilot.pause()
        text = " ".join(page(app).text().split())
        assert "187 of 231 preemptions by dockerd" in text
        assert "→ taskset -cp 6-15 812" in text


async def test_y_copies_the_next_step_of_the_worst_finding() -> None:
    async with running(eager_and_stolen(0), (80, 24)) as (app, pilot):
        await pilot.press("y")
        await pilot.pause()
        assert app.clipboard == "restart with --cuda-graph-max-bs-decode 96 (about +0.4 GB)"


async def test_w_asks_the_rank_where_it_is() -> None:
    source = FakeSource(straggler(0))
    stack = ["recv_requests (scheduler.py:2731)", "event_loop_overlap (scheduler.py:1031)"]
    source.answer = {"ok": True, "result": {"stack": stack, "ct": 184_203, "t": 1}}
    async with running(straggler(0), (80, 24), source=source) as (app, pilot):
        await pilot.press("w")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert source.commands == [("TP5", "where")]
        text = page(app).text()
        assert text.splitlines()[:2] == [f"in    {stack[0]}", f"from  {stack[1]}"]
        assert "at step 184203" in text


async def test_a_command_that_fails_is_said_in_words() -> None:
    source = FakeSource(decode_bound(0))
    async with running(decode_bound(0), (80, 24), source=source) as (app, pilot):
        source.error = ConnectionError("the agent of TP0 is gone")
        await pilot.press("w")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert page(app).text() == "the agent of TP0 is gone"


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving(key: str) -> None:
    async with running(decode_bound(0), (80, 24)) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running or app._exit
        assert app.failure is None


async def test_ctrl_c_leaves_from_a_page_too() -> None:
    async with running(decode_bound(0), (80, 24)) as (app, pilot):
        await pilot.press("question_mark", "ctrl+c")
        await pilot.pause()
        assert app._exit


async def test_palette_reaches_every_key_panel_and_theme() -> None:
    async with running(decode_bound(0), (80, 24)) as (app, pilot):
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {f"Panel: {panel.title}" for panel in PANELS} <= titles
        assert {"Quit", "Help", "Freeze", "Sort", "Filter", "Theme: blue-orange", "Theme: light"} <= titles
        command = next(c for c in app.get_system_commands(app.screen) if c.title == "Panel: findings")
        command.callback()
        await pilot.pause()
        await pilot.pause()
        assert set(app.board.rects) == {"header", "footer", "findings"}
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert CommandPalette.is_open(app)


async def test_themes_change_colours_not_words() -> None:
    async with running(eager_and_stolen(0), (80, 24)) as (app, pilot):
        before = screen_text(app)
        seen = set()
        for name in ("default", "blue-orange", "light"):
            app.set_palette(name)
            await pilot.pause()
            assert screen_text(app) == before
            strips = app.screen._compositor.render_strips()
            seen.add(frozenset(str(s.style) for strip in strips for s in strip))
        assert len(seen) == 3


async def test_a_new_size_gives_a_new_plan() -> None:
    async with running(straggler(0), (200, 60)) as (app, pilot):
        assert "stages" in app.board.rects
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await pilot.pause()
        assert "stages" not in app.board.rects
        assert all(len(line) == 80 for line in app.board.text())
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        await pilot.pause()
        assert set(app.board.rects) == {"tiny"}
        assert len(app.board.text()) == 10


async def test_only_changed_lines_are_repainted() -> None:
    async with running(decode_bound(0), (120, 40)) as (app, pilot):
        look, styles = app._look, app.line_styles
        assert look is not None
        assert app.board.show(look, styles, app._stale_styles()) == 0
        lost = replace(decode_bound(0), lost={"step": 12})
        app.feed(lost)
        await pilot.pause()
        assert "lost 12 rows" in screen_text(app).splitlines()[0]


async def test_a_panel_that_fails_says_so_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[object]:
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(board.BY_KEY, "decode", replace(board.BY_KEY["decode"], draw=broken))
    async with running(eager_and_stolen(0), (80, 24)) as (app, _):
        text = screen_text(app)
        assert "decode: sgtop could not draw" in text
        assert "taskset -cp 6-15 812" in text
        assert app.failure is None


async def test_a_source_that_fails_ends_the_screen_with_its_error() -> None:
    source = FakeSource(decode_bound(0))
    source.error = RuntimeError("session ended")
    app = SgtopApp(source, poll=True)
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(50):
            if app.failure is not None:
                break
            await pilot.pause(0.1)
    assert str(app.failure) == "session ended"


def counted(source: FakeSource) -> list[int]:
    """The source makes a new snapshot at each call; the calls so far."""
    asked: list[int] = []

    def snapshot() -> Snapshot:
        asked.append(1)
        return decode_bound(len(asked))

    source.snapshot = snapshot  # type: ignore[method-assign]
    return asked


async def until(pilot: Pilot[int], done: Callable[[], bool]) -> None:
    for _ in range(300):
        if done():
            return
        await pilot.pause(0.1)
    raise AssertionError("not within 30 s")


async def test_the_source_is_asked_again_and_again_and_each_answer_drawn() -> None:
    source = FakeSource(decode_bound(0))
    asked = counted(source)
    app = SgtopApp(source, poll=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(asked) >= 4)
        assert "3 decode" in screen_text(app)


async def test_a_slow_screen_never_has_snapshots_queued() -> None:
    source = FakeSource(decode_bound(0))
    asked = counted(source)

    class Stuck(SgtopApp):
        """A screen that has not drawn its snapshot yet."""

        def on_new_snapshot(self, message: NewSnapshot) -> None:
            message.prevent_default()

    app = Stuck(source, poll=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(asked) >= 1)
        await pilot.pause(1.5)
        assert len(asked) == 1


async def test_a_mode_of_a_newer_sglang_is_shown_as_such() -> None:
    base = decode_bound(0)
    from .scenes import cells

    ranks = tuple(replace(rank, strip=cells("DD??DD")) for rank in base.ranks)
    async with running(replace(base, ranks=ranks), (80, 24)) as (app, _):
        assert "? other mode" in screen_text(app)
