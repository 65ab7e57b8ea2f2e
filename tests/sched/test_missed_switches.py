"""A kernel that drops the tracepoints of its idle task: level A notices, and the threads' own records fill in."""

from __future__ import annotations

import pytest
from sgtop_probes.sched import counters, level_a
from sgtop_probes.sched.level_a import _SWITCH, Event, LevelA
from sgtop_probes.sched.tracefs import SwitchLayout
from sgtop_probes.sched.types import Watched

from . import rig

pytestmark = pytest.mark.usefixtures("level_a")


def _without_switches_from(tid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every switch from this task is missing, as this kernel's are on some of its CPUs for the idle task."""
    whole = level_a.parse

    def parse(data: bytes, layout: SwitchLayout, out: list[Event]) -> int:
        got: list[Event] = []
        lost = whole(data, layout, got)
        out.extend(e for e in got if e[1] != _SWITCH or e[3] != tid)
        return lost

    monkeypatch.setattr(level_a, "parse", parse)


def test_waits_after_the_idle_task_are_those_of_schedstat(monkeypatch: pytest.MonkeyPatch, cpu: str) -> None:
    _without_switches_from(0, monkeypatch)
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.quota(victim.pid, 0.04):
        source = LevelA([Watched(victim.pid, victim.pid)])
        try:
            rig.collect(source, 0.5)
            before = counters.schedstat(victim.pid, victim.pid)
            batches = rig.collect(source, 2.0)
            after = counters.schedstat(victim.pid, victim.pid)
        finally:
            source.close()
    assert before
    assert after
    assert source.mended
    waited = sum(sum(b.wait) for b in batches)
    # Both ends may cut one throttled period of 100 ms.
    assert rig.within(waited, after[1] - before[1], 0.1, 100e6), (waited, after[1] - before[1])


def test_a_sleepers_naps_end_when_it_wakes(monkeypatch: pytest.MonkeyPatch, cpu: str) -> None:
    _without_switches_from(0, monkeypatch)
    with rig.running(rig.SLEEPY, "sleeper", cpu) as sleeper:
        source = LevelA([Watched(sleeper.pid, sleeper.pid)])
        try:
            rig.collect(source, 0.5)
            before = counters.context_switches(sleeper.pid, sleeper.pid)
            batches = rig.collect(source, 2.0)
            after = counters.context_switches(sleeper.pid, sleeper.pid)
        finally:
            source.close()
    assert before
    assert after
    naps = [r for r in rig.rows(batches) if r["kind"] == "slept"]
    assert rig.within(len(naps), after[0] - before[0], 0.05, 50), (len(naps), after[0] - before[0])


def test_where_nothing_is_missed_no_second_records_are_asked_for(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an idle CPU in play nothing can be missed by the quirk, whatever machine this is."""
    monkeypatch.setattr(level_a.Returns, "start", lambda _self: pytest.fail("records were asked for"))
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BUSY, "hog", cpu):
        source = LevelA([Watched(victim.pid, victim.pid)])
        try:
            batches = rig.collect(source, 1.5)
        finally:
            source.close()
    assert sum(sum(b.wait) for b in batches) > 300e6
