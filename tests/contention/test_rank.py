"""Samples to the ``cpu`` view and to causes: crediting, quotas, rough levels, windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sgtop_core.contention.rank import RankCpu, spread
from sgtop_core.contention.throttle import share_out, wait_of
from sgtop_core.contention.windows import MOST_CULPRITS, OTHERS, Contention, Sums
from sgtop_core.model.causes import Names, Sources
from sgtop_core.model.snapshot import Cpu, Place
from sgtop_probes.sched.types import IDLE, PREEMPTED, Open, Suspect

from .batches import MS, TID, Build, S, counters, quota


def view(rank: RankCpu, end: int, level: int = 0) -> Cpu:
    got = rank.view(level, end)
    assert got is not None
    return got


def causes(rank: RankCpu) -> tuple[Sources, dict[str, int]]:
    """(the sources, cause → ns)."""
    sources = Sources(Names())
    rank.drain(sources)
    return sources, causes_in(sources, 0, 10**15)


def causes_in(sources: Sources, t0: int, t1: int) -> dict[str, int]:
    """Cause → ns between two times, but for ``other``."""
    parts = sources.partition(np.array([t0]), np.array([t1]))
    by: dict[str, int] = {}
    for c, ns in zip(parts.code.tolist(), parts.ns.tolist(), strict=True):
        if c:
            by[sources.names.names[c]] = by.get(sources.names.names[c], 0) + ns
    return by


def test_waits_from_before_a_rank_was_watched_do_not_count() -> None:
    """Samples come earlier than the agent's first data: more waits than time would come out."""
    r = RankCpu(TID, TID)
    b = Build()
    b.preempted(S, (4 * S, 812, "dockerd"))
    r.feed(b.batch(4 * S + MS, migrations={TID: 7}))
    r.begin(5 * S)
    b.preempted(4 * S + 500 * MS, (5 * S + 100 * MS, 812, "dockerd"))
    b.preempted(5 * S + 200 * MS, (5 * S + 300 * MS, 13, "kworker/1:1"))
    r.feed(b.batch(5 * S + 400 * MS, migrations={TID: 7}))
    r.begin(5 * S)
    cpu = view(r, 5 * S + 500 * MS)
    assert (cpu.wait_ms, cpu.preemptions, cpu.longest_ms) == (200.0, 2, 100.0)
    assert sorted((c.pid, c.ms) for c in cpu.culprits) == [(13, 100.0), (812, 100.0)]


def test_nothing_is_known_before_the_first_batch() -> None:
    assert RankCpu(TID, TID).view(0, S) is None


def test_preemptions_with_their_culprits() -> None:
    r = RankCpu(TID, TID, lambda pid: "kernel" if pid == 13 else "other")
    b = Build()
    b.preempted(S, (S + 3 * MS, 812, "dockerd"), (S + 4 * MS, 13, "kworker/1:1"))
    b.preempted(S + 10 * MS, (S + 12 * MS, 812, "dockerd"))
    b.woken(S + 20 * MS, S + 21 * MS, 812, "dockerd")
    b.slept(S + 15 * MS, S + 20 * MS)
    b.rows.add(S, S + 9 * MS, 999, PREEMPTED, 812, "dockerd", 1, 9 * MS)
    r.feed(b.batch(S + 100 * MS, migrations={TID: 7}))
    r.feed(b.batch(S + 200 * MS, migrations={TID: 9}))
    cpu = view(r, S + 250 * MS)
    assert (cpu.level, cpu.wait_ms, cpu.preemptions, cpu.longest_ms) == ("A", 7.0, 2, 4.0)
    assert [(c.pid, c.comm, c.count, c.ms, c.kind) for c in cpu.culprits] == [
        (812, "dockerd", 2, 6.0, "other"),
        (13, "kworker/1:1", 0, 1.0, "kernel"),
    ]
    assert cpu.migrations == 2
    assert cpu.throttled_ms is None, "no cgroup is known"
    _, by = causes(r)
    assert by == {"preempted": 7 * MS, "blocked": 5 * MS}


def test_a_cpu_that_wakes_up_is_nobodys_fault() -> None:
    r = RankCpu(TID, TID)
    r.feed(Build().woken(S, S + MS, IDLE, "idle").batch(S + 50 * MS))
    cpu = view(r, S + 250 * MS)
    assert cpu.wait_ms == 1.0
    assert cpu.culprits == ()


def test_old_contention_leaves_the_window() -> None:
    r = RankCpu(TID, TID)
    b = Build()
    r.feed(b.preempted(S, (S + 3 * MS, 812, "dockerd")).batch(S + 100 * MS))
    assert view(r, 2 * S).preemptions == 1
    assert view(r, 9 * S).preemptions == 0
    assert view(r, 9 * S, level=1).preemptions == 1
    assert view(r, 200 * S, level=1).preemptions == 0
    assert view(r, 200 * S, level=2).preemptions == 1
    assert view(r, 1000 * S, level=2).preemptions == 0


# --- quotas -----------------------------------------------------------------------------------------


def test_waits_that_the_quota_caused_are_told_from_others() -> None:
    r = RankCpu(TID, TID)
    b = Build()
    r.feed(b.batch(S, throttle=quota(5, 100 * MS)))
    b.preempted(S + 10 * MS, (S + 60 * MS, IDLE, "idle"))
    b.preempted(S + 65 * MS, (S + 66 * MS, 812, "dockerd"))
    r.feed(b.batch(S + 100 * MS))
    assert view(r, S + 250 * MS).wait_ms == 0.0, "it is not known yet what they were"
    sources, by = causes(r)
    assert by == {}
    assert sources.mark("throttled") == S + 10 * MS
    r.feed(b.batch(S + 200 * MS, throttle=quota(6, 150 * MS)))
    cpu = view(r, S + 250 * MS)
    assert (cpu.throttled_ms, cpu.nr_throttled) == (50.0, 1)
    assert (cpu.wait_ms, cpu.preemptions) == (1.0, 1)
    assert causes(r)[1] == {"throttled": 50 * MS, "preempted": 1 * MS}


def test_a_neighbour_that_runs_meanwhile_is_not_the_culprit_of_a_throttled_wait() -> None:
    r = RankCpu(TID, TID)
    b = Build()
    r.feed(b.batch(S, throttle=quota(0, 0)))
    b.preempted(S + 10 * MS, (S + 70 * MS, 9, "neighbour"))
    r.feed(b.batch(S + 200 * MS, throttle=quota(1, 60 * MS)))
    cpu = view(r, S + 250 * MS)
    assert cpu.throttled_ms == 60.0
    assert cpu.culprits == ()


def test_a_quota_that_never_bites_accuses_nobody() -> None:
    r = RankCpu(TID, TID)
    b = Build()
    r.feed(b.batch(S, throttle=quota(5, 100 * MS)))
    b.preempted(S + 10 * MS, (S + 60 * MS, 9, "hog"))
    r.feed(b.batch(S + 100 * MS, throttle=quota(5, 100 * MS)))
    cpu = view(r, S + 250 * MS)
    assert (cpu.throttled_ms, cpu.preemptions, cpu.wait_ms) == (0.0, 1, 50.0)


def test_waits_do_not_hang_when_the_counters_stop() -> None:
    r = RankCpu(TID, TID)
    b = Build()
    r.feed(b.batch(S, throttle=quota(5, 100 * MS)))
    r.feed(b.preempted(S + 10 * MS, (S + 60 * MS, 9, "hog")).batch(S + 100 * MS))
    r.feed(b.batch(S + 900 * MS))
    assert view(r, S + 950 * MS).wait_ms == 50.0


def test_without_a_quota_nothing_waits_for_counters() -> None:
    r = RankCpu(TID, TID)
    b = Build()
    r.feed(b.batch(S, throttle=quota(0, 0, cpus=None)))
    r.feed(b.preempted(S + 10 * MS, (S + 60 * MS, 9, "hog")).batch(S + 100 * MS))
    assert view(r, S + 250 * MS).wait_ms == 50.0


times = st.lists(st.tuples(st.integers(1, 80 * MS), st.integers(1, 80 * MS), st.booleans()), max_size=12)


@given(times, st.integers(0, 12), st.integers(0, 10**9))
def test_no_more_is_put_down_to_the_quota_than_it_explains(
    script: list[tuple[int, int, bool]], periods: int, budget: int
) -> None:
    waits, at = [], 0
    for before, length, idle in script:
        at += before
        waits.append(wait_of([(at, at + length, IDLE if idle else 9, "x")]))
        at += length
    held, free, left = share_out(waits, periods, budget)
    assert sorted(held + free, key=lambda w: w.t0) == waits
    assert len(held) <= periods + 1
    assert 0 <= left <= budget
    assert not held or sum(w.ns for w in held[:-1]) - max(w.ns for w in held) < budget


# --- rough levels -----------------------------------------------------------------------------------


def test_level_c_credits_suspects_by_their_shares() -> None:
    r = RankCpu(TID, TID)
    b = Build("C").preempted(S, (S + 8 * MS, -1, "?"))
    r.feed(b.batch(S + 100 * MS, suspects=[Suspect(7, 7, "hog", 4, 0.3), Suspect(8, 8, "minor", 4, 0.1)]))
    cpu = view(r, S + 250 * MS)
    assert [(c.pid, c.count, c.ms, c.certain) for c in cpu.culprits] == [(7, 1, 6.0, False), (8, 0, 2.0, False)]


def test_level_d_knows_how_long_and_how_often_but_not_when() -> None:
    r = RankCpu(TID, TID)
    b = Build("D")
    r.feed(b.batch(S, threads=[counters(S, involuntary=10)]))
    b.spread(S, S + 100 * MS, 40 * MS)
    r.feed(
        b.batch(
            S + 100 * MS,
            threads=[counters(S + 100 * MS, involuntary=17, migrations=3)],
            suspects=[Suspect(7, 7, "hog", 4, 0.3)],
        )
    )
    cpu = view(r, S + 250 * MS)
    assert (cpu.wait_ms, cpu.preemptions, cpu.longest_ms) == (40.0, 7, None)
    assert cpu.culprits[0].pid == 7
    sources, by = causes(r)
    assert by["preempted"] == pytest.approx(40 * MS, rel=0.01)
    half = causes_in(sources, S, S + 50 * MS)
    assert half["preempted"] == pytest.approx(20 * MS, rel=0.05), "evenly in the slice"


def test_level_d_with_a_quota() -> None:
    r = RankCpu(TID, TID)
    b = Build("D")
    r.feed(b.batch(S, throttle=quota(0, 0)))
    b.spread(S, S + 100 * MS, 40 * MS)
    r.feed(b.batch(S + 100 * MS, throttle=quota(1, 30 * MS)))
    cpu = view(r, S + 250 * MS)
    assert (cpu.throttled_ms, cpu.wait_ms) == (30.0, 10.0)


@given(st.integers(0, S), st.integers(1, S), st.floats(0, 1))
def test_spreading_keeps_the_sum_and_stays_inside(t0: int, length: int, share: float) -> None:
    wait = int(length * share)
    a, b = spread(np.array([t0]), np.array([t0 + length]), np.array([wait]))
    assert (b >= a).all()
    assert (a[1:] >= b[:-1]).all()
    assert a[0] == t0
    assert b[-1] <= t0 + length
    assert wait - len(a) <= (b - a).sum() <= wait


# --- marks, place, bounds ---------------------------------------------------------------------------


def test_a_gap_waits_for_an_interval_that_has_not_ended() -> None:
    r = RankCpu(TID, TID)
    r.feed(Build().batch(S, open_=[Open(TID, S - 400 * MS, PREEMPTED, 9, "hog", 4), Open(5, 1, PREEMPTED, 9, "x", 4)]))
    sources, _ = causes(r)
    assert sources.mark("preempted") == S - 400 * MS


def test_near_and_far_from_the_gpu() -> None:
    r = RankCpu(TID, TID)
    r.place = Place(near_cpus=(0, 1, 2, 3))
    b = Build()
    for i, cpu in enumerate((1, 9, 9)):
        r.feed(b.batch(S + i * 200 * MS, threads=[counters(S + i * 200 * MS, cpu=cpu)]))
    assert view(r, 2 * S).numa_ok is False
    for i in range(4):
        r.feed(b.batch(2 * S + i * 200 * MS, threads=[counters(2 * S + i * 200 * MS, cpu=2)]))
    assert view(r, 3 * S).numa_ok is True


def test_without_a_place_nothing_is_said_of_numa() -> None:
    r = RankCpu(TID, TID)
    r.feed(Build().batch(S, threads=[counters(S)]))
    assert view(r, 2 * S).numa_ok is None


def test_culprits_are_bounded_and_none_is_lost() -> None:
    sums = Sums()
    for i in range(500):
        sums.credit((i, "x", True), 1, 1000 + i)
    assert len(sums.culprits) <= MOST_CULPRITS + 1
    assert sum(n for n, _ in sums.culprits.values()) == 500
    assert sum(ns for _, ns in sums.culprits.values()) == sum(1000 + i for i in range(500))
    assert OTHERS in sums.culprits


@given(st.lists(st.integers(0, 20 * S), max_size=40))
def test_windows_take_times_in_any_order(at: list[int]) -> None:
    c = Contention()
    for t in at:
        c.add(t, Sums(preemptions=1))
    head = max(at, default=0) // (S // 4)
    want = sum(1 for t in at if t // (S // 4) > head - 20)
    assert c.read(0, (head + 1) * (S // 4)).preemptions == want
