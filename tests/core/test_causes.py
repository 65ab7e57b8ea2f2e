from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sgtop_core.model.causes import PATIENCE_NS, PRIORITY, AllSources, Names, Sources, timeline
from sgtop_core.model.gaps import Chain, Gaps
from sgtop_core.model.windows import TICK_NS

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12), st.integers(1, 4)), max_size=12)


def arrays(spans: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t0 = np.array([a for a, _, _ in spans], np.int64)
    return t0, t0 + np.array([n for _, n, _ in spans], np.int64), np.array([c for _, _, c in spans], np.int64)


@given(SPANS)
def test_timeline_never_overlaps_and_the_earlier_wins(spans: list[tuple[int, int, int]]) -> None:
    line = timeline(*arrays(spans))
    owner: dict[int, int] = {}
    for a, n, c in sorted(spans, key=lambda s: s[0]):
        for t in range(a, a + n):
            owner.setdefault(t, c)
    got = [(t, c) for a, b, c in zip(line.t0, line.t1, line.code, strict=True) for t in range(a, b)]
    assert got == sorted(owner.items())


@given(
    st.dictionaries(st.sampled_from(PRIORITY), SPANS, max_size=4), st.lists(st.integers(0, 70), min_size=2, max_size=8)
)
def test_every_nanosecond_has_exactly_the_strongest_cause(by: dict, cuts: list[int]) -> None:
    names = Names()
    for i in range(4):
        names.code(f"c{i}")
    sources = Sources(names)
    for name, spans in by.items():
        sources.push(name, *arrays(spans))
    edges = sorted(set(cuts))
    a, b = np.array(edges[:-1:2], np.int64), np.array(edges[1::2], np.int64)
    a = a[: len(b)]
    parts = sources.partition(a, b)
    got = np.zeros((len(a), 5), np.int64)
    np.add.at(got, (parts.which, parts.code), parts.ns)
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        want = np.zeros(5, np.int64)
        for t in range(x, y):
            code = 0
            for name in reversed(PRIORITY):
                spans = sorted(by.get(name, []), key=lambda s: s[0])
                hit = next((c for s, n, c in spans if s <= t < s + n), None)
                if hit is not None:
                    code = hit
                    break
            want[code] += 1
        assert got[i].tolist() == want.tolist()
        assert got[i].sum() == y - x


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(KeyError):
        Sources(Names()).expect("astrology")


def test_a_gap_waits_for_the_sources_that_were_announced_but_not_for_ever() -> None:
    names = Names()
    stage, taken = names.code("run_batch"), names.code("preempted")
    everyone = AllSources(names)
    sources = Sources(names, everyone, 2)
    sources.expect("stage")
    sources.expect("preempted")
    gaps = Gaps(everyone)
    t = 1000 * TICK_NS
    one, rank = np.array([1]), np.array([2])
    gaps.add(rank, np.array([t]), np.array([t + 1000]), one)
    sources.push("stage", np.array([t - 50]), np.array([t + 5000]), np.array([stage]))
    assert gaps.split(t + 2000) is None
    sources.push("preempted", np.array([t + 100]), np.array([t + 400]), np.array([taken]), mark=t + 3000)
    got = gaps.split(t + 2000)
    assert got is not None
    assert dict(zip(got.cause.tolist(), got.ns.tolist(), strict=False)).get(taken) == 300
    assert got.ns.sum() == 1000
    assert got.ns[got.cause == stage].sum() == 700

    gaps.add(rank, np.array([t + 4000]), np.array([t + 9000]), one)
    assert gaps.split(t + 10_000) is None
    late = gaps.split(t + 9000 + PATIENCE_NS)
    assert late is not None
    assert late.ns[late.cause == 0].sum() == 4000
    assert late.ns[late.cause == stage].sum() == 1000


def test_chain_measures_gaps_and_the_union() -> None:
    chain = Chain()
    other = np.array([1, 1])
    assert chain.add(other, np.array([3, 9]), np.array([4, 99])).gap.tolist() == [-1, 5]
    rank = np.array([0, 0, 0])
    first = chain.add(rank, np.array([10, 25, 28]), np.array([20, 40, 35]))
    assert first.gap.tolist() == [-1, 5, 0]
    busy = (first.t1 - first.busy0).tolist()
    assert busy == [10, 15, 0]
    second = chain.add(np.array([0, 0, 1]), np.array([39, 50, 101]), np.array([44, 51, 102]))
    assert second.gap.tolist() == [0, 6, 2]
    assert (second.t1 - second.busy0).tolist() == [4, 1, 1]
    chain.cut(0)
    third = chain.add(np.array([0, 1]), np.array([90, 105]), np.array([91, 106]))
    assert third.gap.tolist() == [-1, 3]


def test_old_intervals_are_forgotten() -> None:
    everyone = AllSources(Names())
    sources = Sources(everyone.names, everyone)
    for k in range(100):
        t = k * 10**9
        sources.push("stage", np.array([t]), np.array([t + 10**8]), np.array([0]))
        everyone.forget(t)
    assert len(everyone._by["stage"].chunks) <= 22


@given(SPANS, SPANS)
def test_ranks_do_not_see_each_other(mine: list[tuple[int, int, int]], theirs: list[tuple[int, int, int]]) -> None:
    names = Names()
    for i in range(4):
        names.code(f"c{i}")
    together, alone = AllSources(names), Sources(names)
    t0, t1, code = arrays(mine)
    u0, u1, other = arrays(theirs)
    rank = np.concatenate([np.full(len(t0), 1), np.full(len(u0), 2)])
    together.push("stage", np.concatenate([t0, u0]), np.concatenate([t1, u1]), np.concatenate([code, other]), rank)
    alone.push("stage", t0, t1, code)
    a, b = np.array([0, 20, 45]), np.array([15, 40, 80])
    want = alone.partition(a, b)
    got = together.partition(np.array([1, 1, 1]), a, b)
    assert sorted(zip(got.which, got.code, got.ns, strict=True)) == sorted(
        zip(want.which, want.code, want.ns, strict=True)
    )
