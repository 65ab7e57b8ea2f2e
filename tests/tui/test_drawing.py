"""The pure parts: numbers, lines, charts, plan. And: no scene at any size ever fails or overflows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sgtop_core.model.snapshot import Attach, Cell, Histogram, Mode, Quantiles, Rank, Snapshot
from sgtop_tui import board, fmt
from sgtop_tui.glyphs import MODES, STATES, mode_glyph, to_ascii
from sgtop_tui.lines import clip, fit, line_width, plain, width_of, wrap
from sgtop_tui.look import Choices, Look, add_modes, leaders
from sgtop_tui.panels import BY_KEY, PANELS, modes, ranks, tiny
from sgtop_tui.panels.charts import edge_label, histogram_block, histogram_line, rebin
from sgtop_tui.plan import Rect, Want, plan
from sgtop_tui.widgets.canvas import changed

from . import scenes
from .scenes import SCENES


@pytest.mark.parametrize(
    ("how", "value", "want"),
    [
        (fmt.count, None, "–"), (fmt.count, 0, "0"), (fmt.count, 67, "67"), (fmt.count, 4.25, "4.2"),
        (fmt.count, 999, "999"), (fmt.count, 999.6, "1.0 k"), (fmt.count, 1900, "1.9 k"), (fmt.count, 41_200, "41.2 k"),
        (fmt.count, 999_600, "1.0 M"), (fmt.count, 3.2e6, "3.2 M"), (fmt.count, 2.5e9, "2.5 G"),
        (fmt.ms, None, "–"), (fmt.ms, 0.0, "0 µs"), (fmt.ms, 0.84, "840 µs"), (fmt.ms, 0.9996, "1.0 ms"),
        (fmt.ms, 9.96, "10 ms"), (fmt.ms, 24, "24 ms"), (fmt.ms, 1400, "1.4 s"),
        (fmt.seconds, 0.4, "0.4 s"), (fmt.seconds, 41, "41 s"), (fmt.seconds, 720, "12 min"),
        (fmt.seconds, 11160, "3.1 h"),
        (fmt.percent, None, "–"), (fmt.percent, 0.0, "0%"), (fmt.percent, 0.003, "0.3%"), (fmt.percent, 0.58, "58%"),
        (fmt.percent, 0.0002, "0.02%"),
        (fmt.percent, 1.0, "100%"), (fmt.window, 5.0, "5 s"), (fmt.window, 600.0, "10 min"),
        (fmt.size, None, "–"), (fmt.size, 900 << 20, "900 MiB"), (fmt.size, 3 << 29, "1.5 GiB"),
    ],
)  # fmt: skip
def test_numbers(how: object, value: object, want: str) -> None:
    assert how(value) == want  # type: ignore[operator]


@pytest.mark.parametrize(
    ("value", "words", "want"),
    [
        (1, ("CPU",), "1 CPU"), (0, ("CPU",), "0 CPUs"), (4, ("CPU",), "4 CPUs"), (None, ("CPU",), "– CPUs"),
        (1, ("launch", "launches"), "1 launch"), (1900, ("launch", "launches"), "1.9 k launches"),
        (1.04, ("forward",), "1.0 forwards"),
    ],
)  # fmt: skip
def test_one_is_not_many(value: float | None, words: tuple[str, ...], want: str) -> None:
    assert fmt.counted(value, *words) == want


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (0.049, 0.0491, "49/49 µs"), (0.17, 0.218, "170/218 µs"), (0.05, 0.841, "50/841 µs"),
        (0.05, 1.2, "0.05/1.2 ms"),
        (24.0, 61.0, "24.0/61 ms"), (30.0, 1400.0, "0.03/1.4 s"), (None, 0.049, "–/49 µs"), (0.049, None, "49 µs/–"),
        (None, None, "–/–"), (0.0012, 0.0149, "1.2/15 µs"), (0.0, 0.0, "0/0 µs"),
        (500.0, 240e3, "500 ms/4 min"), (0.5, 0.9996, "0.50/1.0 ms"),
    ],
)  # fmt: skip
def test_two_times_have_one_unit(low: float | None, high: float | None, want: str) -> None:
    assert fmt.ms_pair(low, high) == want


@given(st.floats(1e-3, 119e3), st.floats(1, 1e4))
@example(0.001, 1.5)
def test_the_unit_of_a_pair_holds_for_both(low: float, ratio: float) -> None:
    high = min(low * ratio, 119e3)
    text, unit = fmt.ms_pair(low, high).split(" ")
    in_ms = [float(figure) * {"µs": 1e-3, "ms": 1.0, "s": 1e3}[unit] for figure in text.split("/")]
    assert in_ms[0] == pytest.approx(low, rel=0.06, abs=0.006 * {"µs": 1e-1, "ms": 1.0, "s": 1e3}[unit])
    assert in_ms[1] == pytest.approx(high, rel=0.06)


def test_no_row_puts_two_times_under_the_unit_of_one() -> None:
    base = scenes.decode_bound(0)
    short = Quantiles(count=9, p50=0.17, p99=0.218, max=0.3, total=2.0)
    mode = replace(base.ranks[0].modes["DECODE"], step_ms=Quantiles(count=9, p50=0.6, p99=0.84, max=1.0, total=6.0))
    one = replace(base.ranks[0], modes={"DECODE": mode}, gaps=replace(scenes.gaps(1, 2, 0.5, {}), quantiles_ms=short))
    look = Look(replace(base, ranks=(one,)))
    row = plain(ranks.inline(one, look, 80))
    assert "step 600/840 µs" in row
    assert "gap 170/218 µs" in row
    assert "600/840 µs" in plain(tiny.rank_line(one, 60, 4))


@given(st.floats(0, 1e12))
def test_numbers_stay_short(value: float) -> None:
    """A column never jumps because a number grew."""
    assert len(fmt.count(value)) <= 7
    assert len(fmt.ms(min(value, 1e8))) <= 7
    assert len(fmt.percent(min(value, 99))) <= 6


def test_a_gap_in_a_series_is_a_gap_not_a_zero() -> None:
    assert fmt.sparkline((1.0, None, 0.0, 1.0), 4) == "█ ▁█"
    assert fmt.sparkline((None, None), 2) == ""
    assert fmt.sparkline((0.0, 0.0), 2) == "▁▁"


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), max_size=60), st.integers(0, 80))
def test_sparklines_fit(values: list[float | None], width: int) -> None:
    assert width_of(fmt.sparkline(tuple(values), width)) <= width


@given(st.floats(0, 1), st.integers(1, 60))
def test_bars_fit_and_something_is_never_nothing(share: float, width: int) -> None:
    text = fmt.bar(share, width)
    assert width_of(text) <= width
    assert bool(text) == (share > 0)


@given(st.text(max_size=60), st.integers(0, 40))
def test_clip_never_exceeds_its_width(text: str, width: int) -> None:
    text = "".join(c for c in text if c.isprintable())
    assert width_of(clip(text, width)) <= width


@given(st.lists(st.tuples(st.text("aé中–▲ ", max_size=12), st.just("")), max_size=6), st.integers(0, 40))
def test_fit_is_exact(parts: list[tuple[str, str]], width: int) -> None:
    assert line_width(fit(parts, width)) == width


@given(st.text("ab cd-–中", max_size=120), st.integers(4, 40), st.integers(0, 3))
def test_wrap_loses_no_word(text: str, width: int, first: int) -> None:
    pieces = wrap(text, width, first)
    assert all(width_of(piece) <= width for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(st.text(max_size=40))
def test_ascii_is_ascii_of_the_same_width(text: str) -> None:
    text = "".join(c for c in text if c.isprintable())
    assert to_ascii(text).isascii()
    if all(width_of(c) == 1 for c in text):
        assert len(to_ascii(text)) == len(text)


def test_every_mode_and_state_is_told_apart_without_colour() -> None:
    letters = {glyph.letter: glyph.word for glyph in MODES.values()}
    assert len(letters) == len({glyph.word for glyph in MODES.values()})
    assert {mode_glyph(m).letter for m in ("DECODE", "EXTEND", "MIXED", "TARGET_VERIFY", "idle")} == set("DPMV·")
    assert mode_glyph("DECODE", eager=True).letter == "e"
    assert mode_glyph("BRAND_NEW").letter == "?"
    assert mode_glyph(None).letter == " "
    letters_ascii = [to_ascii(glyph.letter) for glyph in dict.fromkeys(MODES.values())]
    assert len(letters_ascii) == len(set(letters_ascii))
    assert set(STATES) >= {"live", "connecting", "starting", "lost", "waiting", "hung", "agentless", "replay"}


def test_rebin_loses_no_count_and_folds_the_small_ones() -> None:
    histogram = Histogram(
        edges_ms=tuple(1e-3 * 10 ** (i / 8) for i in range(57)), counts=tuple(i % 7 for i in range(56))
    )
    for most in (3, 6, 20):
        bins = rebin(histogram, most)
        assert sum(n for _, n in bins) == sum(histogram.counts)
        assert len(bins) <= most
        assert [edge for edge, _ in bins] == sorted(edge for edge, _ in bins)
    assert rebin(Histogram((0.0, 1.0), (0,)), 8) == []


def test_histogram_reads_as_in_the_sketch() -> None:
    bins = [(0.01, 20), (0.03, 40), (0.1, 70), (0.3, 20), (1.0, 30), (3.0, 90), (10.0, 100), (30.0, 5)]
    assert plain(histogram_line(bins, 100)) == "<10µs ▂ 30 ▃ 100 ▆ 300 ▂ 1ms ▂ 3 ▇ 10 █ 30 ▁ "
    block = [plain(line) for line in histogram_block(bins, 80, 3)]
    assert len(block) == 3
    assert block[-1].split() == ["<10µs", "≤30µs", "≤100µs", "≤300µs", "≤1ms", "≤3ms", "≤10ms", "≤30ms"]


@pytest.mark.parametrize("k", range(-12, 9))
def test_every_bound_of_a_histogram_reads_as_what_it_is(k: int) -> None:
    """From 1 ns to 30 s: a bound that is rounded to 0, or to its neighbour, says nothing."""
    edge_ms = 10 ** (k // 2) * (3 if k % 2 else 1)
    text = edge_label(edge_ms)
    unit = text.lstrip("0123456789")
    assert int(text.removesuffix(unit)) * {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}[unit] == pytest.approx(edge_ms)
    assert len(text) <= 5


def test_a_histogram_below_a_microsecond_names_its_units() -> None:
    bins = [(0.0001, 2), (0.0003, 20), (0.001, 40), (0.003, 70)]
    assert plain(histogram_line(bins, 100)) == "<100ns ▁ 300 ▂ 1µs ▅ 3 █ "
    assert plain(histogram_block(bins, 40, 3)[-1]).split() == ["<100ns", "≤300ns", "≤1µs", "≤3µs"]


def test_strip_shows_the_newest_and_fills_its_width() -> None:
    cells = (Cell("EXTEND"), *([Cell("DECODE")] * 9))
    assert plain(modes.strip(cells, 5)) == "DDDDD"
    assert plain(modes.strip(cells, 10)) == "PDDDDDDDDD"
    assert plain(modes.strip(cells, 20)) == "PP" + "D" * 18
    assert width_of(plain(modes.strip(cells, 19))) == 19
    assert plain(modes.strip((), 4)) == "    "


def test_ranks_that_did_the_same_share_a_row_and_the_one_in_trouble_comes_first() -> None:
    look = Look(scenes.straggler(0))
    rows, hidden = modes.choose(look.ranks, 2, look.focus)
    assert [label for label, _ in rows] == ["TP5", "TP0 +6"]
    assert hidden == 0
    assert modes.choose(look.ranks, 8, look.focus)[0][0][0] == "TP0"


def _dp(snapshot: Snapshot) -> tuple[Rank, ...]:
    one = snapshot.ranks[0]
    return tuple(replace(one, rank=f"DP{d} TP{t}") for d in range(2) for t in range(2))


def test_tokens_add_up_over_dp_and_count_once_over_tp() -> None:
    base = scenes.decode_bound(0)
    single = base.ranks[0].modes["DECODE"].tokens_per_s
    assert single is not None
    tp = Look(base)
    assert tp.decode is not None
    assert tp.decode.tokens_per_s == pytest.approx(single)
    dp = Look(replace(base, ranks=_dp(base)))
    assert [r.rank for r in leaders(dp.snap.ranks)] == ["DP0 TP0", "DP1 TP0"]
    assert dp.decode is not None
    assert dp.decode.tokens_per_s == pytest.approx(2 * single)
    assert dp.decode.step_p50 == tp.decode.step_p50
    assert dp.running == 62


def test_what_no_rank_knows_stays_unknown() -> None:
    mode: Mode = replace(
        scenes.decode_mode(10, 12, 8, 9, None), tokens_per_s=None, batch_p50=None, gpu_ms=None, series=()
    )
    total = add_modes([mode, mode])
    assert total is not None
    assert (total.tokens_per_s, total.batch_p50, total.gpu_p50, total.graph_share) == (None, None, None, None)
    assert add_modes([replace(mode, steps=0)]) is None


def test_hit_ratio_is_of_tokens_not_of_ranks() -> None:
    a = scenes.prefill_mode(10, 12, 1000, 0.5)
    b = scenes.prefill_mode(10, 12, 3000, 0.0)
    total = add_modes([a, b])
    assert total is not None
    assert total.hit_ratio == pytest.approx(1000 / 5000)


@given(
    st.lists(
        st.builds(
            Want,
            key=st.uuids().map(str),
            row=st.integers(0, 4),
            priority=st.integers(1, 9),
            min_width=st.integers(10, 60),
            min_height=st.integers(2, 6),
            ideal_height=st.integers(2, 12),
            most_height=st.integers(0, 14),
            stretch=st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(20, 200),
    st.integers(3, 60),
)
def test_plan_fills_the_area_and_nothing_overlaps(wants: list[Want], width: int, height: int) -> None:
    placed = plan(wants, Rect(0, 1, width, height))
    cells = set()
    for want in wants:
        if want.key not in placed:
            continue
        rect = placed[want.key]
        assert rect.height >= want.min_height
        own = {(x, y) for x in range(rect.x, rect.x + rect.width) for y in range(rect.y, rect.y + rect.height)}
        assert not own & cells
        cells |= own
    assert all(0 <= x < width and 1 <= y <= height for x, y in cells)
    if placed:
        assert len(cells) == width * height


def test_the_most_important_row_stays_when_there_is_room_for_one_only() -> None:
    wants = [Want("a", 1, 5, 20, 4, 6), Want("b", 2, 1, 20, 4, 6), Want("c", 3, 3, 20, 4, 6)]
    assert set(plan(wants, Rect(0, 0, 80, 5))) == {"b"}
    assert set(plan(wants, Rect(0, 0, 80, 8))) == {"b", "c"}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(SCENES)),
    st.integers(8, 240),
    st.integers(2, 80),
    st.sampled_from([None, *(panel.key for panel in PANELS)]),
)
def test_every_scene_draws_at_every_size(scene: str, width: int, height: int, maximised: str | None) -> None:
    look = Look(SCENES[scene](1), Choices(maximised=maximised, filter="TP1", sort="kv"))
    rects = board.arrange(look, width, height)
    for key, rect in rects.items():
        lines = board.draw(key, rects, look)
        assert len(lines) == rect.height
        assert all(line_width(line) == rect.width for line in lines)
        assert "could not draw" not in "".join(map(plain, lines))


@pytest.mark.parametrize(
    ("window_s", "covered_s", "want"),
    [
        (5.0, 5.0, "the last 5 s"), (60.0, 18.0, "the last 18 s"), (600.0, 18.0, "the last 18 s"),
        (600.0, 240.0, "the last 4 min"), (60.0, 58.0, "the last 60 s"), (600.0, 600.0, "the last 10 min"),
    ],
)  # fmt: skip
def test_nothing_is_said_of_a_time_that_was_not_seen(window_s: float, covered_s: float, want: str) -> None:
    base = scenes.no_traffic(0)
    ranks_ = tuple(replace(r, modes={}, gaps=None, stages_s={}) for r in base.ranks)
    look = Look(replace(base, ranks=ranks_, window_s=window_s, covered_s=covered_s))
    for panel, what in (("prefill", "prefill"), ("decode", "decode"), ("time", "step")):
        text = " ".join(plain(line).strip() for line in BY_KEY[panel].draw(look, 60, 6))
        assert f"no {what} in {want}" in text
        assert text.count("the last") == 1
    fresh = Look(replace(look.snap, covered_s=0.0))
    assert "no prefill seen yet" in "".join(plain(line) for line in BY_KEY["prefill"].draw(fresh, 60, 6))


@pytest.mark.parametrize(
    ("window_s", "covered_s", "want"),
    [(5.0, 5.0, "5 s"), (5.0, 2.25, "2.2 s of 5 s"), (600.0, 31.0, "31 s of 10 min"), (60.0, 0.0, "60 s")],
)
def test_titles_say_how_much_of_a_window_was_seen(window_s: float, covered_s: float, want: str) -> None:
    look = Look(replace(scenes.speculative(), window_s=window_s, covered_s=covered_s))
    noted = [panel.note(look) for panel in BY_KEY.values() if panel.note(look)]
    timed = [note for note in noted if re.search(r"\d (s|min)\b", note)]
    assert len(timed) >= 7
    for note in timed:
        assert re.search(rf"(^| · ){want}($| · )", note) or "cell" in note, note


def test_80x24_has_everything_essential() -> None:
    for name, scene in SCENES.items():
        rects = board.arrange(Look(scene(0)), 80, 24)
        assert {"modes", "prefill", "decode", "time", "findings"} <= set(rects), name
        # A row a rank in any case; the CPU's rows where a scheduler is robbed, which say whose fault it is.
        assert {"ranks", "cpu"} & set(rects), name


def test_200x60_has_everything() -> None:
    look = Look(scenes.speculative(0))
    assert {panel.key for panel in PANELS} <= set(board.arrange(look, 200, 60))


def test_a_snapshot_of_nothing_draws() -> None:
    """Before the first contact: no rank, no figure."""
    empty = replace(scenes.starting(0), ranks=(), attach=Attach(None, "connecting"), processes=())
    for size in ((40, 10), (80, 24), (200, 60)):
        rects = board.arrange(Look(empty), *size)
        text = "\n".join(plain(line) for key in rects for line in board.draw(key, rects, Look(empty)))
        assert "could not draw" not in text
        assert "attaching" in text


@given(
    st.lists(st.tuples(st.text("ab ", min_size=1, max_size=5), st.sampled_from(["", "x"])), max_size=5),
    st.lists(st.tuples(st.text("ab ", min_size=1, max_size=5), st.sampled_from(["", "x"])), max_size=5),
)
def test_changed_covers_every_difference(a: list[tuple[str, str]], b: list[tuple[str, str]]) -> None:
    old, new = fit(a, 20), fit(b, 20)
    start, n = changed(old, new)

    def cells(line: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
        return [(char, style) for text, style in line for char in text]

    differ = [i for i, (x, y) in enumerate(zip(cells(old), cells(new), strict=True)) if x != y]
    assert all(start <= i < start + n for i in differ)
