"""A replay shows what was shown: the same JSON, snapshot by snapshot; and a player's buttons do what they say."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from sgtop_core.jsonout import as_json
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.reader import Recording
from sgtop_core.recording.recorder import Recorder
from sgtop_core.recording.replay import ReplaySession, ticks
from sgtop_core.simulate.scenes import SCENES

from tests.recording import frames, recordings
from tests.recording.live import Live


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_the_same_json_snapshot_by_snapshot(scene: str, tmp_path: Path) -> None:
    live = Live(scene).run(3.0 if SCENES[scene].tp * SCENES[scene].dp < 4 else 1.5)
    path = live.write(tmp_path / "x.sgtop")
    with Recording(path) as r:
        again = list(ticks(r))
    assert len(again) == len(live.snapshots) >= 5
    for a, b in zip(live.snapshots, again, strict=True):
        assert json.dumps(as_json(b)) == json.dumps(as_json(a))
        assert b == a, "and what JSON leaves out"


def test_through_a_real_recorder_too(tmp_path: Path) -> None:
    live = Live("eager-fallback")
    recorder = Recorder()
    live.taps.append(recorder.tap)
    recorder.start(tmp_path / "x.sgtop")
    for e in live.entries:  # what was said before the recorder came: a session makes both at once
        recorder.tap(*e)
    live.run(3.0)
    recorder.close()
    with Recording(tmp_path / "x.sgtop") as r:
        again = list(ticks(r))
    assert again == live.snapshots


def test_the_long_windows_too(tmp_path: Path) -> None:
    live = Live("decode-bound", level=1).run(8.0)
    with Recording(live.write(tmp_path / "x.sgtop")) as r:
        assert list(ticks(r, window_s=60.0)) == live.snapshots


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Live]:
    live = Live("eager-fallback").run(9.0)
    return live.write(tmp_path_factory.mktemp("replay") / "x.sgtop"), live


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_seek_lands_on_the_snapshot_that_was_shown_then(recorded: tuple[Path, Live]) -> None:
    path, live = recorded
    player = ReplaySession(path)
    by_time = {s.mono_ns: s for s in live.snapshots}
    for seconds in (5.0, 8.0, 2.0, 6.5):  # forwards and backwards
        at = player.seek(seconds)
        assert at == pytest.approx(seconds, abs=0.3)
        shown = player.snapshot()
        want = by_time[shown.mono_ns]
        assert shown.ranks == want.ranks
        assert shown.alerts == want.alerts
        assert shown.attach.state == "replay"
    player.stop()


def test_ends(recorded: tuple[Path, Live]) -> None:
    path, live = recorded
    player = ReplaySession(path)
    player.seek(1e9)
    assert player.position().at_s == pytest.approx(player.position().length_s, abs=0.3)
    assert player.snapshot().mono_ns == live.snapshots[-1].mono_ns
    player.seek(-5)
    assert player.position().at_s < 1.0
    player.stop()


def test_plays_at_its_speed_and_stands_when_paused(recorded: tuple[Path, Live]) -> None:
    path, _ = recorded
    clock = Clock()
    player = ReplaySession(path, clock=clock).start()
    try:
        begin = player.position().at_s
        player.set_speed(4.0)
        clock.now += 1.0
        until(lambda: player.position().at_s >= begin + 3.9)
        assert player.position().at_s == pytest.approx(begin + 4.0, abs=0.6)
        assert player.pause() is True
        here = player.position().at_s
        clock.now += 5.0
        time.sleep(0.3)
        assert player.position().at_s == here
        assert "paused" in player.snapshot().attach.message
        assert player.pause() is False
        clock.now += 100.0
        until(lambda: player.position().ended)
        assert "ended" in player.snapshot().attach.message
    finally:
        player.stop()


def until(what: object, seconds: float = 20.0) -> None:
    assert callable(what)
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


def test_next_alert(recorded: tuple[Path, Live]) -> None:
    path, live = recorded
    first = next(s for s in live.snapshots if any(a.active for a in s.alerts))
    player = ReplaySession(path)
    assert player.next_alert()
    assert player.snapshot().mono_ns == first.mono_ns
    assert any(a.active for a in player.snapshot().alerts)
    here = player.snapshot()
    while player.next_alert():
        here = player.snapshot()
    assert not player.position().ended, "it stays at the last one"
    assert player.snapshot().mono_ns == here.mono_ns
    assert player.snapshot().alerts == here.alerts
    player.stop()


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 3.0, 1e9])
def test_where_there_is_no_next_it_stays(loop: bool, seconds: float, tmp_path: Path) -> None:
    path = Live("decode-bound").run(6.0).write(tmp_path / "x.sgtop")
    player = ReplaySession(path, loop=loop, clock=Clock()).start()
    try:
        player.seek(seconds)
        player.pause(True)
        before = player.snapshot()
        for look in (player.next_gap, player.next_alert):
            assert look() is False
            after = player.snapshot()
            assert (after.mono_ns, after.ranks, after.attach) == (before.mono_ns, before.ranks, before.attach)
            assert player.position().paused
    finally:
        player.stop()


def test_what_loops_finds_the_one_before_too(recorded: tuple[Path, Live]) -> None:
    path, live = recorded
    began = [
        b.mono_ns
        for a, b in itertools.pairwise(live.snapshots)
        if {x.id for x in b.alerts if x.active} - {x.id for x in a.alerts if x.active}
    ]
    player = ReplaySession(path, loop=True)
    player.seek(8.5)
    assert player.next_alert()
    assert player.snapshot().mono_ns == began[0]
    player.stop()


def test_next_gap(tmp_path: Path) -> None:
    """A stop of 120 ms after 1.5 s is found; the regular gaps of a few ms are not."""
    entries: list[Entry] = []
    live = Live("decode-bound")
    hold = 120_000_000
    shift = 0
    entries += live.entries
    rank = frames.Rank(0, steps_per_s=200, seed=3)
    rank.now = live.now
    done = False
    for _ in range(60):
        if not done and rank.now > live.now + 1_500_000_000:
            rank.now += hold
            done = True
        entries += [Entry("TP0", f, rank.now + shift) for f in rank.flush()]
        entries.append(Entry("session", {"k": "tick", "unix": 1.79e9 + rank.now / 1e9}, rank.now))
    player = ReplaySession(recordings.write(tmp_path / "x.sgtop", entries))
    assert player.next_gap()
    assert player.position().at_s == pytest.approx(1.8, abs=0.4)
    there = player.position().at_s
    assert not player.next_gap()
    assert player.position().at_s == there
    player.stop()


def test_refuses_what_would_need_a_server(recorded: tuple[Path, Live]) -> None:
    player = ReplaySession(recorded[0])
    assert player.readonly
    reply = player.command(None, "nvtx", {"on": True})
    assert reply["ok"] is False
    assert "recording" in reply["error"]
    player.stop()
    player.stop()


def test_a_recording_without_ticks_is_an_answer(tmp_path: Path) -> None:
    path = recordings.write(tmp_path / "x.sgtop", [Entry("TP0", {"k": "note"}, 5)])
    player = ReplaySession(path)
    with pytest.raises(RecordingError, match="holds no data"):
        player.snapshot()
    player.stop()


def test_loops(recorded: tuple[Path, Live]) -> None:
    clock = Clock()
    player = ReplaySession(recorded[0], clock=clock, loop=True).start()
    try:
        player.seek(8.9)
        clock.now += 1.0
        until(lambda: player.position().at_s < 3.0)
    finally:
        player.stop()


def test_seek_to_the_beginning_shows_the_first_snapshot(recorded: tuple[Path, Live]) -> None:
    """The screen asks for it at once, paused or not."""
    path, live = recorded
    player = ReplaySession(path)
    for there in (0.0, -5.0, 0.05):
        player.seek(3.0)
        player.pause(True)
        player.seek(there)
        assert player.snapshot().mono_ns == live.snapshots[0].mono_ns
    player.stop()
