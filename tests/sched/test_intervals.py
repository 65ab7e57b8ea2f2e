"""The pure parts: switches to intervals, crediting, which CPUs are read whole, filters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from sgtop_probes.sched import filters
from sgtop_probes.sched.exact import BACKOFF_NS, KEEP_NS, Exact, ExactPlan, ExactRing, Timeline
from sgtop_probes.sched.intervals import Tracker
from sgtop_probes.sched.types import COLUMNS, IDLE, PREEMPTED, SLEPT, UNKNOWN, WAKEUP_WAIT, Rows


def name(tid: int, comm: bytes) -> tuple[int, str]:
    return tid, comm.decode() or "?"


def table(rows: Rows) -> list[tuple[int, ...]]:
    c = rows.columns()
    return list(zip(*(c[n] for n in COLUMNS), strict=True))


def test_a_preemption() -> None:
    t, rows = Tracker(name), Rows()
    t.watch({7: 7})
    t.out(100, 7, 1, True, 9, b"hog")
    t.back(350, 7, 1, 9, b"hog", rows)
    assert table(rows) == [(100, 350, 7, PREEMPTED, 9, 0, 1, 250, 1)]
    assert rows.comms() == ("hog",)
    assert t.take_waited() == {1: 250}
    assert t.take_waited() == {}
    assert t.opened() == ()


def test_a_sleep_and_the_wait_after_it() -> None:
    t, rows = Tracker(name), Rows()
    t.watch({7: 7})
    t.out(100, 7, 1, False, 0, b"swapper")
    t.wake(300, 7, 2)
    t.wake(310, 7, 2)
    t.back(340, 7, 2, 9, b"hog", rows)
    assert table(rows) == [
        (100, 300, 7, SLEPT, UNKNOWN, 0, 1, 0, 1),
        (300, 340, 7, WAKEUP_WAIT, 9, 1, 2, 40, 1),
    ]
    assert t.own_migrations() == {7: 1}


def test_a_sleep_whose_wake_up_is_not_seen() -> None:
    t, rows = Tracker(name), Rows()
    t.watch({7: 7})
    t.out(100, 7, 1, False, 0, b"")
    t.back(340, 7, 1, 0, b"", rows)
    assert table(rows) == [(100, 340, 7, SLEPT, UNKNOWN, 0, 1, 0, 1)]


def test_rows_speak_the_watchers_ids() -> None:
    t, rows = Tracker(name), Rows()
    t.watch({18097: 2})
    t.out(100, 18097, 1, True, 0, b"")
    assert [(o.tid, o.kind, o.who_pid, o.cpu) for o in t.opened()] == [(2, PREEMPTED, IDLE, 1)]
    t.back(200, 18097, 1, 0, b"", rows)
    assert table(rows)[0][2] == 2
    assert t.own_migrations() == {2: 0}


def test_what_does_not_fit_together_is_dropped_and_counted() -> None:
    t, rows = Tracker(name), Rows()
    t.watch({7: 7})
    t.back(50, 7, 1, 9, b"hog", rows)
    t.out(100_000, 7, 1, True, 9, b"hog")
    t.out(200_000, 7, 1, True, 9, b"hog")
    assert t.broken == 1
    t.back(150_000, 7, 1, 9, b"hog", rows)
    assert table(rows) == []
    t.out(300_000, 99, 1, True, 9, b"hog")
    t.back(400_000, 99, 1, 9, b"hog", rows)
    assert table(rows) == []


def test_one_switch_recorded_twice_while_filters_change() -> None:
    t, rows = Tracker(name), Rows()
    t.watch({7: 7})
    t.out(100_000, 7, 1, True, 9, b"hog")
    t.out(100_900, 7, 1, True, 9, b"hog")
    t.back(500_000, 7, 1, 9, b"hog", rows)
    t.back(500_700, 7, 1, 9, b"hog", rows)
    assert [r[:2] for r in table(rows)] == [(100_000, 500_000)]
    assert t.broken == 0


def test_watching_others_keeps_what_is_known_of_those_that_stay() -> None:
    t, rows = Tracker(name), Rows()
    t.watch({7: 7, 8: 8})
    t.out(100, 7, 1, True, 9, b"hog")
    t.watch({7: 7})
    t.back(200, 7, 1, 9, b"hog", rows)
    assert len(table(rows)) == 1
    assert 8 not in t.watched


events = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.integers(0, 2), st.integers(1, 10**6)),
    max_size=60,
)


@given(events)
def test_any_order_of_events_gives_ordered_intervals(script: list[tuple[int, int, bool, int, int]]) -> None:
    t, rows = Tracker(name), Rows()
    t.watch({0: 0, 1: 1, 2: 2})
    now = 0
    for what, tid, flag, cpu, step in script:
        now += step
        if what == 0:
            t.out(now, tid, cpu, flag, 9, b"hog")
        elif what == 1:
            t.wake(now, tid, cpu)
        else:
            t.back(now, tid, cpu, 9, b"hog", rows)
    last: dict[int, int] = {}
    for t0, t1, tid, kind, _who, _comm, _cpu, wait, _first in table(rows):
        assert t0 <= t1
        assert t0 >= last.get(tid, 0), "a thread's intervals follow each other"
        last[tid] = t1
        assert wait == (0 if kind == SLEPT else t1 - t0)


# --- exact crediting --------------------------------------------------------------------------------


def test_each_competitor_is_credited_with_what_it_ran() -> None:
    line = Timeline()
    for t, tid in ((100, 1), (110, 2), (150, 3), (160, 3), (200, 7)):
        line.add(t, tid, b"c%d" % tid)
    assert list(line.split(7, 101, 199, 1, b"c1")) == [(101, 110, 1, b"c1"), (110, 150, 2, b"c2"), (150, 199, 3, b"c3")]


def test_the_victim_is_never_its_own_culprit() -> None:
    """The same switch is stamped a little earlier in one ring than in the other."""
    line = Timeline()
    line.add(99, 1, b"c1")
    line.add(198, 7, b"victim")
    assert list(line.split(7, 100, 200, 1, b"c1")) == [(100, 200, 1, b"c1")]


runs = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4)), min_size=1, max_size=40)


@given(runs, st.integers(0, 400), st.integers(1, 400))
def test_parts_are_contiguous_and_sum_to_the_wait(script: list[tuple[int, int]], begin: int, length: int) -> None:
    line = Timeline()
    now = 0
    for step, tid in script:
        now += step
        line.add(now, tid, b"x")
    parts = list(line.split(99, begin, begin + length, 5, b"first"))
    assert parts[0][0] == begin
    assert parts[-1][1] == begin + length
    assert all(a[1] == b[0] and a[2:] != b[2:] for a, b in itertools.pairwise(parts))
    assert all(a < b for a, b, *_ in parts)


def test_a_timeline_is_bounded_and_takes_late_events() -> None:
    line = Timeline(most=100)
    for t in range(0, 1000, 2):
        line.add(t, t, b"")
    line.add(997, 5, b"late")
    assert line.running(997) == (5, b"late")
    assert line.running(998) == (998, b"")
    assert line.running(10) is None, "long forgotten"
    line.forget(996)
    assert line.running(995) is None


MS = 1_000_000


def test_a_cpu_is_read_whole_while_somebody_waits_there() -> None:
    plan = ExactPlan(most_per_s=10_000)
    assert plan.update(1, 100 * MS, {3: 400_000}, {}) == frozenset(), "too short to be worth it"
    assert plan.update(2, 100 * MS, {3: 5 * MS}, {}) == {3}
    assert plan.update(2 + KEEP_NS // 2, 100 * MS, {}, {3: 10}) == {3}
    assert plan.update(2 + KEEP_NS, 100 * MS, {}, {3: 10}) == frozenset()


def test_a_cpu_that_switches_too_often_is_left_out_for_a_while() -> None:
    plan = ExactPlan(most_per_s=10_000)
    plan.update(0, 100 * MS, {1: 5 * MS, 2: 5 * MS}, {})
    assert plan.update(1, 100 * MS, {1: 5 * MS, 2: 5 * MS}, {1: 5_000, 2: 300}) == {2}
    assert plan.update(2, 100 * MS, {1: 5 * MS}, {2: 300}) == {2}
    assert 1 in plan.update(BACKOFF_NS + 2, 100 * MS, {1: 5 * MS}, {2: 300})


def test_only_so_many_cpus_at_once() -> None:
    plan = ExactPlan(most_cpus=2)
    assert plan.update(1, 100 * MS, {1: 2 * MS, 2: 9 * MS, 3: 5 * MS}, {}) == {2, 3}


class _FakeRing(ExactRing):
    def __init__(self, script: list[tuple[int, int, bytes]]) -> None:
        self.script, self.on, self.closed = script, False, False

    def start(self) -> None:
        self.on = True

    def stop(self) -> None:
        self.on = False

    def read(self) -> Iterable[tuple[int, int, bytes]]:
        out, self.script = self.script, []
        return out

    def close(self) -> None:
        self.closed = True


def test_exact_opens_closes_and_survives_a_refused_ring() -> None:
    ring = _FakeRing([(5 * MS, 8, b"b")])

    def make(cpu: int) -> ExactRing:
        if cpu == 9:
            raise OSError("no more memory to lock")
        return ring

    exact = Exact(make)
    assert list(exact.split(7, 1, 0, 10, (4, b"a"), (5, b"z"))) == [(0, 10, 4, b"a")]
    assert list(exact.split(7, 1, 0, 10, None, (5, b"z"))) == [(0, 10, 5, b"z")]
    exact.plan(0, 100 * MS, {1: 2 * MS, 9: 2 * MS}, 0)
    assert exact.cpus == (1,)
    assert ring.on
    assert "lock" in exact.failed
    exact.drain()
    got = list(exact.split(7, 1, 4 * MS, 8 * MS, (4, b"a"), (8, b"b")))
    assert got == [(4 * MS, 5 * MS, 4, b"a"), (5 * MS, 8 * MS, 8, b"b")]
    assert list(exact.split(7, 1, 6 * MS, 8 * MS, None, (5, b"z"))) == [(6 * MS, 8 * MS, 8, b"b")]
    exact.plan(2 * KEEP_NS, 100 * MS, {}, 0)
    assert exact.cpus == ()
    assert not ring.on
    exact.close()
    assert ring.closed


# --- filters ----------------------------------------------------------------------------------------


def passes(text: str, **values: int) -> bool:
    """What the kernel makes of a filter."""
    python = text.replace("||", " or ").replace("&&", " and ")
    return bool(eval(re.sub(r"[a-z_]+", lambda m: str(values.get(m[0], m[0])), python)))


@given(st.sets(st.integers(1, 4_194_304), max_size=400), st.integers(1, 4_194_304))
def test_a_filter_passes_every_watched_thread_and_fits(tids: set[int], other: int) -> None:
    text = filters.build(("prev_pid", "next_pid"), tids)
    assert len(text) <= filters.MAX_BYTES
    for tid in list(tids)[:20]:
        assert passes(text, prev_pid=tid, next_pid=0)
        assert passes(text, prev_pid=0, next_pid=tid)
    if len(tids) < 50 and other not in tids:
        assert not passes(text, prev_pid=other, next_pid=other)


def test_no_threads_pass_nothing() -> None:
    assert not passes(filters.build(("pid",), ()), pid=5)


def test_the_smallest_holes_are_closed_first() -> None:
    assert filters.ranges([1, 2, 4, 100], 2) == [(1, 4), (100, 100)]
    assert filters.ranges([5, 1], 9) == [(1, 1), (5, 5)]
