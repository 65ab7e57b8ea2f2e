"""The main thread's time line: exclusive segments, collapsed while idle or paused, bounded."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_agent import timeline
from sgtop_agent.timeline import IDLE, OTHER, PAUSED, Timeline


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000
        monkeypatch.setattr(timeline, "mono", self)

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def enter(tl: Timeline, clock: Clock, code: int) -> None:
    tl.put((clock(), code))


def idle_turn(tl: Timeline, clock: Clock) -> None:
    """What the hooks do in a turn that finds no work."""
    tl.begin_turn(False)
    enter(tl, clock, 1)
    enter(tl, clock, 2)
    enter(tl, clock, 3)
    enter(tl, clock, OTHER)
    if tl.quiet != timeline.QUIET_IDLE:
        enter(tl, clock, IDLE)
    tl.rest()


def busy_turn(tl: Timeline, clock: Clock) -> None:
    tl.begin_turn(False)
    enter(tl, clock, 1)
    enter(tl, clock, 3)
    if tl.quiet:
        tl.wake()
    enter(tl, clock, 5)
    enter(tl, clock, OTHER)


def segments(tl: Timeline, now: int) -> list[tuple[int, int, int]]:
    return drained(tl, now, 2048)


def drained(tl: Timeline, now: int, most: int) -> list[tuple[int, int, int]]:
    values, codes = tl.take(most)
    stage, t0, t1 = tl.segments(array("q", values), array("q", codes), now)
    return list(zip(stage, t0, t1, strict=True))


def test_idle_turns_leave_one_mark(clock: Clock) -> None:
    tl = Timeline()
    idle_turn(tl, clock)
    first = len(tl.marks)
    for _ in range(10_000):
        idle_turn(tl, clock)
    assert len(tl.marks) == first
    assert len(tl.scratch) <= 8
    got = segments(tl, clock.now)
    assert got[-1][0] == IDLE
    assert got[-1][2] == tl.seen


def test_idle_grows_piece_by_piece_and_ends_where_work_begins(clock: Clock) -> None:
    tl = Timeline()
    idle_turn(tl, clock)
    segments(tl, clock.now)
    idle_turn(tl, clock)
    (piece,) = segments(tl, clock.now)
    assert piece[0] == IDLE
    assert segments(tl, clock.now) == []  # nothing is known beyond what the last turn saw
    tl.inside_idle = True  # asleep in on_idle: the stage lasts until now
    (more,) = segments(tl, clock.now + 50)
    assert more == (IDLE, piece[2], clock.now + 50)
    tl.inside_idle = False
    clock.now += 100
    busy_turn(tl, clock)
    rest = segments(tl, clock.now)
    assert [s for s, _, _ in rest] == [IDLE, 1, 3, 5]
    assert rest[0][1] == more[2]


def test_paused_turns_collapse_and_end(clock: Clock) -> None:
    tl = Timeline()
    busy_turn(tl, clock)
    for _ in range(100):
        tl.begin_turn(True)
        enter(tl, clock, 1)
        enter(tl, clock, 2)
    assert len(tl.scratch) <= 4
    tl.begin_turn(False)
    busy_turn(tl, clock)
    stages = [s for s, _, _ in segments(tl, clock.now)]
    assert stages.count(PAUSED) == 1


def test_a_list_that_nobody_empties_stays_bounded_and_says_what_it_lost(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "CAPACITY", 200)
    tl = Timeline()
    for _ in range(1000):
        busy_turn(tl, clock)
    assert len(tl.marks) + len(tl.scratch) < 300
    assert tl.lost > 0
    got = segments(tl, clock.now)
    for _ in range(4):
        busy_turn(tl, clock)
    got += segments(tl, clock.now)
    assert all(stage >= 0 for stage, _, _ in got)
    holes = sum(b[1] - a[2] for a, b in pairwise(got))
    assert holes > 0  # the time that is not known belongs to no stage


def test_stop_ends_marking(clock: Clock) -> None:
    tl = Timeline()
    idle_turn(tl, clock)
    tl.stop()
    n = len(tl.marks)
    busy_turn(tl, clock)
    idle_turn(tl, clock)
    assert len(tl.marks) == n
    assert tl.scratch == []


TURNS = st.lists(st.sampled_from(["busy", "idle", "paused", "drain", "sleep"]), max_size=60)


@given(turns=TURNS, most=st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_segments_are_ordered_and_exclusive_whatever_happens(turns: list[str], most: int) -> None:
    monkeypatch = pytest.MonkeyPatch()
    try:
        clock: Any = Clock(monkeypatch)
        tl = Timeline()
        got: list[tuple[int, int, int]] = []

        def drain() -> None:
            got.extend(drained(tl, clock(), most))

        for turn in turns:
            if turn == "busy":
                busy_turn(tl, clock)
            elif turn == "idle":
                idle_turn(tl, clock)
            elif turn == "paused":
                tl.begin_turn(True)
                enter(tl, clock, 1)
            elif turn == "sleep" and tl.quiet == timeline.QUIET_IDLE:
                tl.inside_idle = True
                drain()
                tl.inside_idle = False
                tl.rest()
            else:
                drain()
        while tl.marks:
            drain()
        for stage, t0, t1 in got:
            assert stage >= 0
            assert t0 <= t1
        for before, after in pairwise(got):
            assert before[2] == after[1]  # neither overlap nor hole
    finally:
        monkeypatch.undo()
