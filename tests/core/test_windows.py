from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_core.model.arrays import ranges, split
from sgtop_core.model.bins import COARSE_EDGES_NS, Counts, Durations, coarse, quantiles
from sgtop_core.model.hist_bank import HistBank
from sgtop_core.model.time_bank import TimeBank
from sgtop_core.model.windows import TICK_NS, WINDOWS, level

S = 1_000_000_000


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("scale", [3e3, 2e6, 8e8])
def test_a_quantile_is_at_most_two_percent_off(q: float, scale: float) -> None:
    values = np.random.default_rng(7).lognormal(np.log(scale), 0.8, 20_000).astype(np.int64)
    hist = np.bincount(Durations.index(values), minlength=Durations.size)
    (got,) = quantiles(hist, Durations.middles(), (q,))
    want = np.sort(values)[int(np.ceil(q * len(values))) - 1]
    assert got == pytest.approx(want, rel=0.02)


def test_batch_sizes_are_exact_below_256_and_close_above() -> None:
    for n in (0, 1, 67, 255):
        assert Counts.middles()[Counts.index(np.array([n]))[0]] == n
    for n in (256, 300, 512, 2_000, 50_000):
        assert Counts.middles()[Counts.index(np.array([n]))[0]] == pytest.approx(n, rel=0.02)


def test_values_outside_the_bins_land_at_the_ends() -> None:
    assert Durations.index(np.array([0, -5, 1])).tolist() == [0, 0, 0]
    assert Durations.index(np.array([10**15]))[0] == Durations.size - 1


def test_nothing_has_no_quantile() -> None:
    assert quantiles(np.zeros(Durations.size, np.int64), Durations.middles(), (0.5, 0.99)) == (None, None)


def test_coarse_histogram_holds_every_value_between_its_edges() -> None:
    values = np.array([50, 900, 2_000, 5_000_000, 40_000_000_000, 10**15])
    counts = coarse(np.bincount(Durations.index(values), minlength=Durations.size))
    assert counts.sum() == len(values)
    assert len(counts) == len(COARSE_EDGES_NS) - 1
    i = np.searchsorted(COARSE_EDGES_NS, 5_000_000) - 1
    assert counts[i] == 1
    assert counts[-1] == 2
    assert counts[0] == 3


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 25)), max_size=30), st.integers(1, 9))
def test_split_keeps_every_nanosecond_in_its_cell(spans: list[tuple[int, int]], width: int) -> None:
    t0 = np.array([a for a, _ in spans], np.int64)
    t1 = t0 + np.array([n for _, n in spans], np.int64)
    which, cell, a, b = split(t0, t1, width)
    got = [(w, c, t) for w, c, x, y in zip(which, cell, a, b, strict=True) for t in range(x, y)]
    want = [(i, t // width, t) for i, (x, y) in enumerate(zip(t0, t1, strict=True)) for t in range(x, y)]
    assert got == want


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20))
def test_ranges(pairs: list[tuple[int, int]]) -> None:
    which, value = ranges(np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))
    assert list(zip(which, value, strict=True)) == [(i, v) for i, (a, b) in enumerate(pairs) for v in range(a, b)]


def test_level_is_the_shortest_window_that_holds() -> None:
    assert [level(s) for s in (2, 5, 6, 60, 61, 600, 3_600)] == [0, 0, 1, 1, 2, 2, 2]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(1, 10**9), max_size=4)), max_size=25))
def test_hist_bank_equals_a_plain_count(ticks: list[tuple[int, list[int]]]) -> None:
    bank: HistBank[str] = HistBank(Durations)
    row = bank.row(3, "x", trace=True)
    end = 10_000 * TICK_NS
    kept: list[tuple[int, int]] = []
    for step, values in ticks:
        end += step * TICK_NS
        bank.add(np.full(len(values), row), np.array(values, np.int64))
        bank.commit(end)
        kept += [(end, v) for v in values]
        for i, w in enumerate(WINDOWS):
            head = (end - 1) // w.slot_ns
            inside = [v for t, v in kept if (t - 1) // w.slot_ns > head - w.slots]
            got = bank.read(i, 3).get("x")
            if not inside:
                assert got is None
                continue
            assert got is not None
            assert (got.count, got.total, got.max) == (len(inside), sum(inside), max(inside))
            assert got.p50 == pytest.approx(sorted(inside)[(len(inside) + 1) // 2 - 1], rel=0.02, abs=100)
            last = [v for t, v in kept if (t - 1) // w.slot_ns == head]
            median = bank.medians(i, 3, "x")[-1]
            assert (median is None) == (not last)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 400), st.integers(0, 300)), max_size=20))
def test_time_bank_puts_late_intervals_where_they_were(ticks: list[tuple[int, int, int]]) -> None:
    """Each interval ends at or before the tick in which it is reported, perhaps long before."""
    bank: TimeBank[str] = TimeBank()
    row = bank.row(3, "x")
    end = 10_000 * TICK_NS
    spans: list[tuple[int, int]] = []
    for step, late, length in ticks:
        end += step * TICK_NS
        bank.advance(end)
        b = end - late * TICK_NS // 7
        a = b - length * TICK_NS // 5
        bank.add(np.array([row]), np.array([a]), np.array([b]))
        # what is older than the window's oldest slot when it arrives is not in that window
        spans.append((a, b))
        for i, w in enumerate(WINDOWS):
            start = ((end - 1) // w.slot_ns - w.slots + 1) * w.slot_ns
            want = sum(max(min(y, end) - max(x, start), 0) for x, y in spans)
            assert bank.read(i, 3).get("x", 0) == want


def test_the_short_window_is_exactly_five_seconds() -> None:
    w = WINDOWS[0]
    assert w.span(400 * TICK_NS, 0) == 5 * S
    assert w.span(400 * TICK_NS, 400 * TICK_NS - 2 * S) == 2 * S
    for w in WINDOWS[1:]:
        spans = {w.span(k * TICK_NS, 0) / S for k in range(10_000, 10_400)}
        assert min(spans) > w.seconds
        assert max(spans) <= w.seconds + w.slot_ns / S


def test_banks_grow_with_their_keys() -> None:
    bank: HistBank[int] = HistBank(Counts)
    times: TimeBank[int] = TimeBank()
    for k in range(40):
        bank.add(np.array([bank.row(0, k)]), np.array([k]))
        times.row(0, k)
        bank.commit(1_000 * TICK_NS)
        times.advance(1_000 * TICK_NS)
        times.add_now(np.array([times.row(0, k)]), np.array([k + 1]))
    assert {k: s.max for k, s in bank.read(0, 0).items()} == {k: k for k in range(40)}
    assert times.read(2, 0) == {k: k + 1 for k in range(40)}
