"""Attribution, tables and gaps against slow arithmetic written down the long way."""

from __future__ import annotations

import statistics
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_core.kernels.attribute import Forwards, union_length
from sgtop_core.kernels.gaps import CAUSES, GapFinder, Gaps, RollingGaps, gap_histogram
from sgtop_core.kernels.inflation import inflation
from sgtop_core.kernels.table import Rolling, Stats, deviations, medians, merge, renumber, summarise
from sgtop_core.kernels.why import LongGaps
from sgtop_core.model.bins import Durations
from sgtop_core.model.causes import PATIENCE_NS, Names, Sources

Array = np.ndarray
MODES = {1: "EXTEND", 2: "DECODE"}


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def forward_rows(*rows: tuple[int, int, int, int, int, int]) -> dict[str, Array]:
    """(ct, mode, t0, gpu0, gpu1, bs); host and GPU times in µs."""
    us = 1000
    return {
        "ct": ints(*(r[0] for r in rows)),
        "runner": ints(*(0 for _ in rows)),
        "mode": ints(*(r[1] for r in rows)),
        "t0": ints(*(r[2] * us for r in rows)),
        "t1": ints(*(r[2] * us + 100_000 for r in rows)),
        "gpu0": ints(*(r[3] * us if r[3] >= 0 else -1 for r in rows)),
        "gpu1": ints(*(r[4] * us if r[4] >= 0 else -1 for r in rows)),
        "gpu2": ints(*(-1 for _ in rows)),
        "bs": ints(*(r[5] for r in rows)),
        "graph": ints(*(1 for _ in rows)),
    }


def assign(f: Forwards, *spans: tuple[int, int]) -> list[str]:
    owners = f.assign(ints(*(a * 1000 for a, _ in spans)), ints(*(b * 1000 for _, b in spans)))
    return [f.labels[c] for c in owners.code.tolist()]


def test_kernels_go_to_the_forward_around_them() -> None:
    f = Forwards(MODES)
    f.add(forward_rows((1, 1, 0, 1000, 5000, 4), (2, 2, 4000, 5040, 9000, 8)))
    assert assign(f, (1000, 1100), (4900, 5010), (5045, 5050), (8900, 9050)) == ["EXTEND", "EXTEND", "DECODE", "DECODE"]


def test_slack_is_bounded_and_ends_half_way() -> None:
    f = Forwards(MODES)
    f.add(forward_rows((1, 1, 0, 1000, 5000, 4), (2, 2, 4000, 5100, 9000, 8), (3, 2, 9000, 12000, 13000, 8)))
    # 100 µs between the first two: half each. 3 ms between the others: 150 µs each, the rest is nobody's.
    assert assign(f, (5030, 5040), (5060, 5070), (9100, 9140), (10000, 10100), (11900, 11950)) == [
        "EXTEND", "DECODE", "DECODE", "", "DECODE",
    ]  # fmt: skip


def test_forwards_without_events_use_the_hosts_times() -> None:
    f = Forwards(MODES)
    f.add(forward_rows((1, 2, 1000, -1, -1, 4)))
    assert not f.timed
    assert assign(f, (1010, 1020), (3000, 3010)) == ["DECODE", ""]


def test_draft_forwards_have_their_own_label() -> None:
    f = Forwards(MODES)
    rows = forward_rows((1, 2, 0, 1000, 2000, 4), (1, 2, 100, 3000, 4000, 4))
    rows["runner"] = ints(0, 1)
    f.add(rows)
    assert assign(f, (1500, 1600), (3500, 3600)) == ["DECODE", "draft DECODE"]


def test_unknown_modes_pass_through_and_memory_is_bounded() -> None:
    f = Forwards(MODES)
    for k in range(60):
        n = 1000
        base = k * n * 100
        f.add(
            forward_rows(*((k * n + i, 77, base + 100 * i, base + 100 * i, base + 100 * i + 50, 1) for i in range(n)))
        )
    assert len(f._rows["ct"]) == 40_000
    assert assign(f, (60 * 1000 * 100 - 80, 60 * 1000 * 100 - 70)) == ["mode 77"]


intervals = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 300)), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(intervals)
def test_union(spans: list[tuple[int, int]]) -> None:
    covered = {t for a, n in spans for t in range(a, a + n)}
    assert union_length(ints(*(a for a, _ in spans)), ints(*(a + n for a, n in spans))) == len(covered)


blocks = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 10_000_000), st.integers(0, 2)), max_size=50
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(blocks)
def test_sums_are_exact_and_the_median_is_close(parts: list[list[tuple[int, int, int, int]]]) -> None:
    columns = [zip(*p, strict=True) if p else ([],) * 4 for p in parts]
    nine = [ints(*([9] * len(p))) for p in parts]
    summed = merge([summarise(*(ints(*c) for c in cols), b) for cols, b in zip(columns, nine, strict=True)])
    want: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for p in parts:
        for code, kernel, duration, graph in p:
            want.setdefault((code, kernel), []).append((duration, graph))
    assert list(zip(summed.code.tolist(), summed.kernel.tolist(), strict=True)) == sorted(want)
    for i, key in enumerate(sorted(want)):
        durations = [d for d, _ in want[key]]
        assert summed.count[i] == len(durations)
        assert summed.total[i] == sum(durations)
        assert (summed.low[i], summed.high[i]) == (min(durations), max(durations))
        assert summed.graph[i] == sum(g != 0 for _, g in want[key])
        assert summed.bytes[i] == 9 * len(durations)
        middle = sorted(durations)[(len(durations) - 1) // 2]
        if middle >= 100:
            assert medians(summed)[i] == pytest.approx(middle, rel=0.02)
        if len(durations) > 1:
            assert deviations(summed)[i] == pytest.approx(statistics.stdev(durations), rel=1e-6, abs=0.5)
        else:
            assert np.isnan(deviations(summed)[i])


def test_rolling_windows_are_bounded_and_forget() -> None:
    rolling = Rolling()
    for second in range(2000):
        rolling.add(second, summarise(ints(1), ints(second % 3), ints(1000), ints(0), ints(0)))
    assert int(rolling.since(1995).count.sum()) == 5
    assert int(rolling.since(1940).count.sum()) == 60
    assert 600 <= int(rolling.since(1400).count.sum()) <= 610
    assert int(rolling.since(0).count.sum()) <= 672
    assert len(rolling._bins) < 140


def lengths(gaps: Gaps) -> list[int]:
    return (gaps.b - gaps.a).tolist()


def test_a_gap_is_time_in_which_no_stream_runs_anything() -> None:
    finder = GapFinder(threshold_ns=50)
    start, end = ints(0, 10, 100, 130, 500), ints(90, 95, 120, 140, 510)
    gaps = finder.find(start, end, ints(1, 1, 1, 2, 2), ints(-1, -1, -1, -1, 200))
    assert lengths(gaps) == [5, 10, 360], "a kernel on another stream fills the gap of the first"
    assert gaps.code.tolist() == [1, 2, 2]
    assert [CAUSES[c] for c in gaps.cause] == ["kernel wait", "kernel wait", "host wait"]
    gaps = finder.find(ints(600), ints(610), ints(2), ints(400))
    assert lengths(gaps) == [90], "the next block goes on where the last one ended"
    assert [CAUSES[c] for c in gaps.cause] == ["other"]
    finder.restart()
    assert lengths(finder.find(ints(900), ints(910), ints(2), ints(-1))) == []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 400)), min_size=1, max_size=80), st.integers(1, 5))
def test_gaps_and_busy_are_the_whole_time_in_any_pieces(spans: list[tuple[int, int]], pieces: int) -> None:
    a, n = np.array(sorted(spans), np.int64).T
    finder, got = GapFinder(), 0
    for part in np.array_split(np.arange(len(a)), pieces):
        got += sum(lengths(finder.find(a[part], a[part] + n[part], np.ones_like(part), np.full_like(part, -1))))
    assert got + union_length(a, a + n) == (a + n).max() - a.min()


class Main:
    """A main thread of which one thing is known: it was preempted from 1,000 to 3,000 ns, said at ``until``."""

    def __init__(self, until: int) -> None:
        self.names = Names()
        self.sources = Sources(self.names)
        self.sources.expect("preempted")
        code = np.array([self.names.code("preempted")], np.int64)
        self.sources.push("preempted", ints(1_000), ints(3_000), code, mark=until)


def test_gpu_idle_is_split_by_what_was_done_to_the_main_thread() -> None:
    rolling = RollingGaps()
    held = LongGaps(rolling)
    held.add(Gaps(ints(500, 8_000), ints(4_000, 9_000), ints(1, 2), ints(0, 2)))
    main = Main(until=4_500)
    held.count(main.sources, now=9_000)
    assert rolling.since(0).causes.keys() == {1}, "the second gap waits until all have reported"
    causes = dict(zip(CAUSES, rolling.since(0).causes[1].tolist(), strict=True))
    assert (causes["preempted"], causes["host wait"]) == (2_000, 1_500)
    held.count(main.sources, now=9_000 + PATIENCE_NS)
    assert sum(c.sum() for c in rolling.since(0).causes.values()) == 4_500, "but not for ever"
    assert rolling.since(0).hist[2].sum() == 1


def test_gaps_count_at_once_where_nobody_knows_of_the_main_thread() -> None:
    rolling = RollingGaps()
    held = LongGaps(rolling)
    held.add(Gaps(ints(500), ints(4_000), ints(1), ints(0)))
    held.count(None, now=4_000)
    assert rolling.since(0).causes[1][0] == 3_500


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.integers(1, 900)), min_size=1, max_size=60))
def test_kernels_that_share_a_number_become_one_row_with_nothing_lost(rows: list[tuple[int, int, int]]) -> None:
    code, kernel, duration = np.array(rows, np.int64).T
    zero = np.zeros_like(code)
    numbers = np.arange(13) // 3
    got = renumber(summarise(code, kernel, duration, zero, zero), numbers)
    want = summarise(code, numbers[kernel], duration, zero, zero)
    for f in fields(Stats):
        assert getattr(got, f.name).tolist() == pytest.approx(getattr(want, f.name).tolist()), f.name


def test_gap_histogram_bins() -> None:
    values = ints(50, 150, 1_500, 15_000, 20_000_000_000)
    hist = gap_histogram(np.bincount(Durations.index(values), minlength=Durations.size))
    assert hist.sum() == 5
    assert np.flatnonzero(hist).tolist() == [0, 4, 8, 31]
    assert hist[0] == 2


def test_rolling_gaps_merge_a_second_and_forget() -> None:
    rolling = RollingGaps()
    for second in range(1000):
        for _ in range(3):
            rolling.add(second, ints(1000, 2000), ints(1, 2), ints(0, 1))
    block = rolling.since(990)
    assert {c: int(h.sum()) for c, h in block.hist.items()} == {1: 30, 2: 30}
    assert block.causes[2].tolist() == [0, 60_000, *[0] * (len(CAUSES) - 2)]
    assert block.longest == {1: 1000, 2: 2000}
    assert len(rolling._blocks) <= 662


def test_inflation_compares_equal_batch_sizes() -> None:
    t0 = np.arange(0, 4_000_000, 1000, dtype=np.int64)
    traced = (t0 // 1_000_000) % 2 == 1
    bs = np.where((t0 // 10_000) % 2 == 0, 1, 32)
    length = np.where(bs == 1, 1000, 900) * np.where(traced, 1.05, 1.0)
    got = inflation(np.ones_like(t0), bs, t0, length.astype(np.int64), [(1_000_000, 2_000_000), (3_000_000, 4_000_000)])
    assert got == {1: pytest.approx(1.05, abs=0.001)}


def test_inflation_is_not_fooled_by_steps_that_get_longer() -> None:
    """An endless decode: 30 % longer from one end to the other, and tracing costs 1 %."""
    windows = [(k * 1_000_000, k * 1_000_000 + 100_000) for k in (1, 11, 21)]
    t0, t = [], 0
    while t < 30_000_000:
        t0.append(t)
        t += int((1_000 + t * 300 / 30_000_000) * (1.01 if any(a <= t < b for a, b in windows) else 1.0))
    start = np.array(t0, np.int64)
    one = np.ones_like(start[:-1])
    assert inflation(one, one, start[:-1], np.diff(start), windows)[1] == pytest.approx(1.01, abs=0.001)


def test_inflation_is_unknown_without_both_sides() -> None:
    t0 = np.arange(0, 1_000_000, 1000, dtype=np.int64)
    one = np.ones_like(t0)
    assert inflation(one, one, t0, one * 1000, []) == {}
    assert inflation(one, one, t0, one * 1000, [(0, 2_000_000)]) == {}
