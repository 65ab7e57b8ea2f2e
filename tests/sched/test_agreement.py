"""Level A against perf sched timehist and the kernel's own counters, over the same interval, with real competitors."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
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


def pick(batches: Sequence[SchedBatch], kind: str, begin_ns: int, end_ns: int) -> list[dict[str, int | str]]:
    """Rows of a kind that end between two times; parts of one interval have one end, the last part's."""
    return [r for r in rig.rows(batches) if r["kind"] == kind and begin_ns <= int(r["t1"]) < end_ns]


def longest(rows: Sequence[dict[str, int | str]]) -> float:
    """The longest interval in ms, its parts put together."""
    best = here = 0
    for r in rows:
        here = int(r["wait"]) if r["first"] else here + int(r["wait"])
        best = max(best, here)
    return best / 1e6


@pytest.mark.usefixtures("level_a", "perf_binary")
@pytest.mark.parametrize("competitors", [1, 3])
def test_preemptions_equal_perf_and_schedstat(competitors: int, cpu: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        victim = stack.enter_context(rig.running(rig.BUSY, "victim", cpu))
        hogs = [stack.enter_context(rig.running(rig.BUSY, f"hog{i}", cpu)) for i in range(competitors)]
        source = LevelA([Watched(victim.pid, victim.pid)])
        stack.callback(source.close)
        perf = Perf(tmp_path)
        batches = rig.collect(source, WARM_S)
        before = [counters.schedstat(p.pid, p.pid) for p in (victim, *hogs)]
        switches0 = counters.context_switches(victim.pid, victim.pid)
        begin = time.monotonic_ns()
        batches += rig.collect(source, SECONDS)
        after = [counters.schedstat(p.pid, p.pid) for p in (victim, *hogs)]
        switches1 = counters.context_switches(victim.pid, victim.pid)
        end = time.monotonic_ns()
        time.sleep(0.1)
        batches.append(source.poll())
        perf.stop()
        lost = source.lost
    rows = pick(batches, "preempted", begin, end)
    count = sum(int(r["first"]) for r in rows)
    wait_ms = sum(int(r["wait"]) for r in rows) / 1e6
    theirs = totals(perf.runs(victim.pid), begin / 1e9, end / 1e9)
    assert lost == 0
    assert rig.within(count, theirs.preemptions, 0.02, 2), (count, theirs)
    assert rig.within(wait_ms, theirs.preempted_ms, 0.02, 1), (wait_ms, theirs)
    assert rig.within(longest(rows), theirs.longest_ms, 0.02, 0.1)
    assert switches0
    assert switches1
    assert rig.within(count, switches1[1] - switches0[1], 0.02, 2)
    assert before[0]
    assert after[0]
    # An interval that straddles an edge is counted whole by schedstat, and cut at a part's edge by us.
    assert rig.within(wait_ms, (after[0][1] - before[0][1]) / 1e6, 0.02, 15)
    # Whenever a competitor runs, the victim (always runnable, same CPU) waits: what each ran is what it is due.
    by = defaultdict(float)
    for r in rows:
        by[int(r["who_pid"])] += int(r["wait"]) / 1e6
    for hog, a, b in zip(hogs, before[1:], after[1:], strict=True):
        assert a
        assert b
        assert rig.within(by[hog.pid], (b[0] - a[0]) / 1e6, 0.03, 15), (hog.name, by, b[0] - a[0])
    assert {r["who"] for r in rows if r["who_pid"] in {h.pid for h in hogs}} == {h.name for h in hogs}


@pytest.mark.usefixtures("level_a", "perf_binary")
def test_a_sleeper_waits_after_wake_ups(cpu: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        victim = stack.enter_context(rig.running(rig.SLEEPY, "sleeper", cpu))
        stack.enter_context(rig.running(rig.BUSY, "hog", cpu))
        source = LevelA([Watched(victim.pid, victim.pid)])
        stack.callback(source.close)
        perf = Perf(tmp_path)
        begin = time.monotonic_ns()
        batches = rig.collect(source, SECONDS)
        end = time.monotonic_ns() - 50_000_000
        time.sleep(0.1)
        batches.append(source.poll())
        perf.stop()
    wakes = pick(batches, "wakeup-wait", begin, end)
    slept = [r for r in rig.rows(batches) if r["kind"] == "slept"]
    theirs = totals(perf.runs(victim.pid), begin / 1e9, end / 1e9)
    assert theirs.sleeps > 100
    assert rig.within(sum(int(r["first"]) for r in wakes), theirs.sleeps, 0.02, 2)
    # Waits of some 15 µs, and two recorders stamp the same event up to 2 µs apart, one after the other.
    ours_ms = sum(int(r["wait"]) for r in wakes) / 1e6
    assert rig.within(ours_ms, theirs.wakeup_ms, 0.02, theirs.sleeps * 0.002)
    assert all(r["wait"] == 0 and int(r["t1"]) > int(r["t0"]) for r in slept)
    assert {r["who"] for r in wakes if int(r["wait"]) > 1_000_000} >= {"hog"} or theirs.wakeup_ms < 20


@pytest.mark.usefixtures("level_a")
def test_all_levels_tell_the_same_story(cpu: str) -> None:
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BUSY, "hog", cpu) as hog:
        watched = [Watched(victim.pid, victim.pid)]
        sources: list[SchedSource] = [LevelA(watched), LevelB(watched), LevelC(watched), LevelD(watched)]
        got: dict[str, list[SchedBatch]] = {s.level: [s.poll()] for s in sources}
        before = counters.schedstat(victim.pid, victim.pid)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(0.05)
            for s in sources:
                got[s.level].append(s.poll())
        after = counters.schedstat(victim.pid, victim.pid)
        for s in sources:
            s.close()
    assert before
    assert after
    waits = {level: sum(sum(b.wait) for b in batches) / 1e6 for level, batches in got.items()}
    truth = (after[1] - before[1]) / 1e6
    # Each source began a little earlier and ended at its own last poll.
    assert all(rig.within(w, truth, 0.02, 40) for w in waits.values()), (waits, truth)
    counts = {level: sum(sum(b.first) for b in got[level] if level != "D") for level in "ABC"}
    assert rig.within(counts["A"], counts["B"], 0.02, 5), counts
    assert rig.within(counts["A"], counts["C"], 0.02, 5), counts
    for level in "AB":
        by: dict[int, int] = defaultdict(int)
        for r in rig.rows(got[level]):
            by[int(r["who_pid"])] += int(r["wait"])
        assert max(by, key=lambda p: by[p]) == hog.pid
    for level in "CD":
        assert got[level][-1].suspects[0].pid == hog.pid, got[level][-1].suspects
    last = [b for b in got["D"] if b.threads][-1].threads[0]
    assert (last.tid, last.state) == (victim.pid, "R")
    assert last.involuntary
    assert last.cpu == int(cpu)


@pytest.mark.usefixtures("level_a")
def test_a_short_burst_is_caught(cpu: str) -> None:
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BURST, "burst", cpu) as burst:
        source = LevelA([Watched(victim.pid, victim.pid)])
        batches = rig.collect(source, 4.2)
        source.close()
    mine = [r for r in rig.rows(batches) if r["who_pid"] == burst.pid and int(r["wait"]) > 500_000]
    assert mine
    # Bursts of 0.3 s every 2 s: the waits stand close together, far from the next burst's.
    starts = sorted(int(r["t0"]) for r in mine)
    gaps = [b - a for a, b in itertools.pairwise(starts) if b - a > 1_000_000_000]
    assert 1 <= len(gaps) <= 2


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
    with rig.running(rig.SWITCHY, "switchy", cpu) as victim:
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
            batches = rig.collect(source, 0.5)
            source.close()
            assert {t for b in batches for t in b.tid} == {second.pid}, source.level
