"""Level A against perf sched timehist and the kernel's own counters, over the same interval, with real competitors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from sgtop_probes.sched import counters
from sgtop_probes.sched.level_a import LevelA
from sgtop_probes.sched.level_b import LevelB
from sgtop_probes.sched.level_c import LevelC
from sgtop_probes.sched.level_d import LevelD
from sgtop_probes.sched.types import SchedBatch, SchedSource, Watched

from . import rig
from .timehist import Perf, totals

SECONDS = 3.0
WARM_S = 0.7
"""Before the measured time: exact crediting begins with the first poll that sees a wait."""


Row = dict[str, int | str]


def pick(batches: Sequence[SchedBatch], kind: str, begin_ns: int, end_ns: int) -> list[list[Row]]:
    """Whole intervals of a kind, as their parts, that end between two times: the kernel counts them then."""
    out: list[list[Row]] = []
    for r in rig.rows(batches):
        if r["kind"] != kind:
            continue
        if r["first"]:
            out.append([])
        out[-1].append(r)
    return [parts for parts in out if begin_ns <= int(parts[-1]["t1"]) < end_ns]


def total_ms(intervals: Sequence[Sequence[Row]]) -> float:
    return sum(int(r["wait"]) for parts in intervals for r in parts) / 1e6


def longest_ms(intervals: Sequence[Sequence[Row]]) -> float:
    return max((total_ms([parts]) for parts in intervals), default=0.0)


def credited_ms(batches: Sequence[SchedBatch], pid: int, begin_ns: int, end_ns: int) -> float:
    """What a competitor is credited with between two times, to the nanosecond."""
    ns = 0
    for r in rig.rows(batches):
        if r["who_pid"] == pid:
            ns += max(0, min(int(r["t1"]), end_ns) - max(int(r["t0"]), begin_ns))
    return ns / 1e6


Reading = tuple[int, tuple[int, int, int], tuple[int, int]]


def reading(pid: int) -> Reading:
    """(time, schedstat, context switches) that belong together: nothing came between the readings."""
    while True:
        begin = time.monotonic_ns()
        stat, switches = counters.schedstat(pid, pid), counters.context_switches(pid, pid)
        if time.monotonic_ns() - begin < 1_000_000:
            assert stat
            assert switches
            return begin, stat, switches


@pytest.mark.usefixtures("level_a", "perf_binary")
@pytest.mark.parametrize("competitors", [1, 3])
def test_preemptions_equal_perf_and_schedstat(competitors: int, cpu: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        victim = stack.enter_context(rig.running(rig.BUSY, "victim", cpu))
        hogs = [stack.enter_context(rig.running(rig.BUSY, f"hog{i}", cpu)) for i in range(competitors)]
        source = LevelA([Watched(victim.pid, victim.pid)], exact_limit=100_000)
        stack.callback(source.close)
        perf = Perf(tmp_path)
        batches = rig.collect(source, WARM_S)
        before = [reading(p.pid) for p in (victim, *hogs)]
        batches += rig.collect(source, SECONDS)
        after = [reading(p.pid) for p in (victim, *hogs)]
        batches += rig.collect(source, 0.3)
        perf.stop()
        lost = source.lost
    begin, end = before[0][0], after[0][0]
    intervals = pick(batches, "preempted", begin, end)
    count, wait, longest = len(intervals), total_ms(intervals), longest_ms(intervals)
    theirs = totals(perf.runs(victim.pid), begin / 1e9, end / 1e9)
    assert lost == 0
    assert count > 50
    assert rig.within(count, theirs.preemptions, 0.02, 2), (count, theirs)
    assert rig.within(wait, theirs.preempted_ms, 0.02, 1), (wait, theirs)
    assert rig.within(longest, theirs.longest_ms, 0.02, 0.1), (longest, theirs)
    assert rig.within(count, after[0][2][1] - before[0][2][1], 0.02, 2)
    assert rig.within(wait, (after[0][1][1] - before[0][1][1]) / 1e6, 0.02, 1)
    # Whenever a competitor runs, the victim (always runnable, same CPU) waits: what each ran is what it is due. The
    # kernel adds to a running thread's time at its ticks: up to 4 ms at each end, more where the host itself waits.
    for hog, a, b in zip(hogs, before[1:], after[1:], strict=True):
        due = (b[1][0] - a[1][0]) / 1e6
        assert rig.within(credited_ms(batches, hog.pid, a[0], b[0]), due, 0.02, 20), (hog.name, due)
    names = {(r["who_pid"], r["who"]) for r in rig.rows(batches)}
    assert {(h.pid, h.name) for h in hogs} <= names


@pytest.mark.usefixtures("level_a", "perf_binary")
def test_a_sleeper_waits_after_wake_ups(cpu: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        victim = stack.enter_context(rig.running(rig.SLEEPY, "sleeper", cpu))
        hog = stack.enter_context(rig.running(rig.BUSY, "hog", cpu))
        source = LevelA([Watched(victim.pid, victim.pid)])
        stack.callback(source.close)
        perf = Perf(tmp_path)
        batches = rig.collect(source, WARM_S)
        begin = time.monotonic_ns()
        batches += rig.collect(source, SECONDS)
        end = time.monotonic_ns()
        batches += rig.collect(source, 0.3)
        perf.stop()
    wakes = pick(batches, "wakeup-wait", begin, end)
    slept = [r for r in rig.rows(batches) if r["kind"] == "slept"]
    theirs = totals(perf.runs(victim.pid), begin / 1e9, end / 1e9)
    assert theirs.sleeps > 100
    assert rig.within(len(wakes), theirs.sleeps, 0.02, 2)
    # Waits of some 15 µs, and two recorders stamp the same event up to 3 µs apart, one after the other.
    assert rig.within(total_ms(wakes), theirs.wakeup_ms, 0.02, theirs.sleeps * 0.003), theirs
    assert all(r["wait"] == 0 and int(r["t1"]) > int(r["t0"]) for r in slept)
    assert hog.pid in {r["who_pid"] for parts in wakes for r in parts}


@pytest.mark.usefixtures("level_a")
def test_all_levels_tell_the_same_story(cpu: str) -> None:
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BUSY, "hog", cpu) as hog:
        watched = [Watched(victim.pid, victim.pid)]
        sources: list[SchedSource] = [
            LevelA(watched, exact_limit=100_000),
            LevelB(watched),
            LevelC(watched),
            LevelD(watched),
        ]
        got: dict[str, list[SchedBatch]] = {s.level: [s.poll()] for s in sources}

        def collect(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.05)
                for s in sources:
                    got[s.level].append(s.poll())

        collect(WARM_S)
        before = reading(victim.pid)
        collect(SECONDS)
        after = reading(victim.pid)
        collect(0.3)
        for s in sources:
            s.close()
        assert [s.lost for s in sources] == [0, 0, 0, 0]
    begin, end = before[0], after[0]
    truth = (after[1][1] - before[1][1]) / 1e6
    by_level = {level: pick(got[level], "preempted", begin, end) for level in "ABC"}
    waits = {level: total_ms(found) for level, found in by_level.items()}
    assert all(rig.within(w, truth, 0.02, 1) for w in waits.values()), (waits, truth)
    counts = {level: len(found) for level, found in by_level.items()}
    assert max(counts.values()) - min(counts.values()) <= max(2, 0.02 * counts["A"]), counts
    # Level D knows slices: what its edges cut off or add is at most a slice's waits.
    slices = [r for r in rig.rows(got["D"]) if begin <= int(r["t1"]) < end]
    edge = max(longest_ms(by_level["A"]), max(int(r["t1"]) - int(r["t0"]) for r in slices) / 1e6)
    assert rig.within(sum(int(r["wait"]) for r in slices) / 1e6, truth, 0.02, 2 * edge)
    due = {level: credited_ms(got[level], hog.pid, begin, end) for level in "AB"}
    assert rig.within(due["A"], due["B"], 0.02, 5), due
    assert due["A"] > 100
    for level in "CD":
        assert hog.pid in {x.pid for b in got[level] for x in b.suspects}, level
    last = [b for b in got["D"] if b.threads][-1].threads[0]
    assert (last.tid, last.state) == (victim.pid, "R")
    assert last.involuntary
    assert last.cpu == int(cpu)


@pytest.mark.usefixtures("level_a")
def test_a_short_burst_is_caught(cpu: str) -> None:
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BURST, "burst", cpu, stranger=True) as burst:
        source = LevelA([Watched(victim.pid, victim.pid)])
        batches = rig.collect(source, 6.2)
        source.close()
    mine = [r for r in rig.rows(batches) if r["who_pid"] == burst.pid and int(r["wait"]) > 500_000]
    assert mine
    # Bursts of 0.3 s every 2 s: the waits stand close together, far from the next burst's.
    starts = sorted(int(r["t0"]) for r in mine)
    gaps = [b - a for a, b in itertools.pairwise(starts) if b - a > 1_000_000_000]
    assert 1 <= len(gaps) <= 3


@pytest.mark.usefixtures("level_a")
def test_new_threads_are_watched(cpu: str) -> None:
    with rig.running(rig.THREADS, "threads", cpu) as victim, rig.running(rig.BUSY, "hog", cpu):
        source = LevelA([Watched(victim.pid, victim.pid)], every_thread=True)
        batches = rig.collect(source, 4.5)
        source.close()
    tids = {t for b in batches for t in b.tid if t != victim.pid}
    assert len(tids) >= 2, "each second a new thread was started"


@pytest.mark.usefixtures("level_a")
def test_main_threads_only_is_the_default(cpu: str) -> None:
    with rig.running(rig.THREADS, "threads", cpu) as victim, rig.running(rig.BUSY, "hog", cpu):
        source = LevelA([Watched(victim.pid, victim.pid)])
        batches = rig.collect(source, 2.5)
        source.close()
    assert {t for b in batches for t in b.tid} <= {victim.pid}


@pytest.mark.usefixtures("level_a")
@pytest.mark.parametrize("level", [LevelA, LevelB])
def test_tiny_rings_lose_and_say_so(level: type[LevelA] | type[LevelB], cpu: str) -> None:
    with rig.running(rig.SWITCHY, "switchy", cpu) as victim:
        source = level([Watched(victim.pid, victim.pid)], pages=1)
        source.poll()
        time.sleep(0.5)
        source.poll()
        time.sleep(0.05)
        batch = source.poll()
        source.close()
    assert source.lost > 0
    assert batch.lost == source.lost


@pytest.mark.usefixtures("level_a")
def test_waiting_for_the_ring_loses_nothing(cpu: str) -> None:
    """Tens of thousands of switches a second, and a caller that would sleep a second: a half-full ring wakes it."""
    with rig.running(rig.PACED, "paced", cpu) as victim:
        source = LevelA([Watched(victim.pid, victim.pid)], exact=False)
        batches = rig.collect(source, 1.0, every=1.0)
        lost = source.lost
        source.close()
    assert len(batches) > 3
    assert sum(len(b) for b in batches) > 2000
    assert lost == 0


@pytest.mark.usefixtures("level_a")
def test_a_watched_process_that_dies_is_no_longer_there(cpu: str) -> None:
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BUSY, "hog", cpu):
        sources: list[SchedSource] = [
            level([Watched(victim.pid, victim.pid)]) for level in (LevelA, LevelB, LevelC, LevelD)
        ]
        for s in sources:
            s.poll()
        victim.stop()
        time.sleep(1.2)
        for s in sources:
            s.poll()
        time.sleep(1.2)
        for s in sources:
            batch = s.poll()
            assert not batch.open, s.level
            assert not batch.threads, s.level
            s.wait(0.0)
            s.close()


@pytest.mark.usefixtures("level_a")
def test_watching_others_from_now_on(cpu: str) -> None:
    with (
        rig.running(rig.BUSY, "first", cpu) as first,
        rig.running(rig.BUSY, "second", cpu) as second,
    ):
        for level in (LevelA, LevelB, LevelC, LevelD):
            source: SchedSource = level([Watched(first.pid, first.pid)])
            rig.collect(source, 0.5)
            source.watch([Watched(second.pid, second.pid)])
            rig.collect(source, 0.1)
            seen: set[int] = set()
            end = time.monotonic() + 10
            while not seen and time.monotonic() < end:
                seen = {t for b in rig.collect(source, 0.5) for t in b.tid}
            source.close()
            assert seen == {second.pid}, source.level
