"""A recording as a source of snapshots, with the methods of a live session and a player's besides.

The entries make the same calls to the same model as they did live (:mod:`.feed`), so the snapshot at a tick is the
one that was shown then. Going back feeds a new model from the start, or, in a long recording, from a window's length
before the moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sgtop_agent.wire import STAGES

from sgtop_core.model.snapshot import Attach, Snapshot
from sgtop_core.model.windows import WINDOWS, level

from .chunk import Entry
from .columns import Ints
from .errors import RecordingError
from .feed import Feed
from .reader import Recording, damaged

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
LEAD_NS = int(WINDOWS[-1].seconds * 1e9)
"""Fed before a moment that is jumped to, so that every window is full there."""
GAP_NS = 50_000_000
"""A step gap worth jumping to, and at least GAP_TIMES the median."""
GAP_TIMES = 10


@dataclass(frozen=True, slots=True)
class Position:
    """Where a replay stands."""

    at_s: float
    length_s: float
    speed: float
    paused: bool
    ended: bool
    damage: int


def ticks(recording: Recording, window_s: float = 5.0) -> Iterator[Snapshot]:
    """Every snapshot of a recording, as the live session made them, as fast as they can be made."""
    feed = Feed()
    at = level(window_s)
    for e in recording:
        if feed.take(e) and (s := feed.snapshot(at)) is not None:
            yield s


class ReplaySession:
    """A :class:`~sgtop_tui.source.Source` over a recording: everything that would change the server is refused.

    Args:
        recording: a path or an open recording.
        speed: 1.0 is as it was.
        clock: seconds, for the pace only.
    """

    def __init__(
        self,
        recording: str | Path | Recording,
        *,
        speed: float = 1.0,
        window_s: float = 5.0,
        loop: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recording = recording if isinstance(recording, Recording) else Recording(recording)
        self._clock = clock
        self._speed = speed
        self._level = level(window_s)
        self._loop = loop
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._paused = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._rewind(self.recording.start_ns)
        self._step_to_tick()
        self._anchor()

    # --- Source ---------------------------------------------------------------------------------------

    @property
    def loops(self) -> bool:
        """It begins anew at its end."""
        return self._loop

    @property
    def readonly(self) -> bool:
        """Always: there is no server."""
        return True

    def start(self) -> ReplaySession:
        """Play, on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="sgtop-replay", daemon=True)
        self._thread.start()
        return self

    def snapshot(self) -> Snapshot:
        """The snapshot at the position."""
        with self._lock:
            s = self._feed.snapshot(self._level)
            if s is None:
                raise RecordingError(
                    f"{self.recording.name} holds no data", "no snapshot was made while it was recorded"
                )
            return replace(s, attach=Attach(s.attach.way, "replay", self._words(s.attach.message)))

    def set_window(self, seconds: float) -> None:
        """Choose the window of all figures, seconds."""
        with self._lock:
            self._level = level(seconds)

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refused: a recording cannot be asked."""
        return {"k": "reply", "ok": False, "error": "this is a recording: there is no server to ask"}

    def stop(self) -> None:
        """End the thread and close the file."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(5)
        self.recording.close()

    # --- player ---------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Where it stands."""
        with self._lock:
            r = self.recording
            return Position((self._at - r.start_ns) / 1e9, r.seconds, self._speed, self._paused, self._ended, r.damage)

    def pause(self, on: bool | None = None) -> bool:
        """Stop or go on (None: the other of the two); whether it stands now."""
        with self._wake:
            self._paused = not self._paused if on is None else on
            self._anchor()
            self._wake.notify_all()
            return self._paused

    def set_speed(self, speed: float) -> float:
        """Play this many times as fast as it was."""
        with self._wake:
            self._speed = min(max(speed, SPEEDS[0]), SPEEDS[-1])
            self._anchor()
            self._wake.notify_all()
            return self._speed

    def seek(self, seconds: float) -> float:
        """Go to ``seconds`` from the start; where it stands then."""
        with self._wake:
            r = self.recording
            target = min(max(r.start_ns + int(seconds * 1e9), r.start_ns), r.end_ns)
            if target < self._at:
                self._rewind(target)
                self._step_to_tick()  # there is a snapshot to show, however near the beginning
            while self._at < target and self._step_to_tick():
                pass
            self._anchor()
            self._wake.notify_all()
            return (self._at - r.start_ns) / 1e9

    def next_alert(self) -> bool:
        """Go to the next moment at which a finding begins; False, and no move, where there is none."""
        return self._go_to_next(lambda: _New(self._active))

    def next_gap(self) -> bool:
        """Go to the next long gap between forwards of any rank (50 ms and ten medians); False as above."""

        def begin() -> Callable[[], bool]:
            self._gaps.take()
            return self._gaps.take

        return self._go_to_next(begin)

    # --- inside ---------------------------------------------------------------------------------------

    def _active(self) -> set[tuple[str, str | None]]:
        return {(a.id, a.rank) for a in self._feed.model.alerts if a.active}

    def _words(self, live: str) -> str:
        where = f"{(self._at - self.recording.start_ns) / 1e9:.1f} of {self.recording.seconds:.1f} s"
        state = "ended" if self._ended else "paused" if self._paused else f"{self._speed:g}×"
        damage = f", {damaged(self.recording.damage)} skipped" if self.recording.damage else ""
        if self._feed.malformed:
            damage += f", {self._feed.malformed} entries that this sgtop cannot read"
        return f"replay {where}, {state}{damage}" + (f"; then: {live}" if live else "")

    def _rewind(self, target: int) -> None:
        self._feed = Feed()
        self._gaps = _Gaps()
        self._ended = False
        self._at = self.recording.start_ns
        begin = target - LEAD_NS
        self._entries = self.recording.entries(begin if begin > self.recording.start_ns else None)

    def _step_to_tick(self) -> bool:
        """Feed entries up to the next tick that shows something new; False at the end."""
        for e in self._entries:
            if self._take(e):
                return True
        self._ended = True
        return False

    def _take(self, e: Entry) -> bool:
        self._at = max(self._at, min(e.mono_ns, self.recording.end_ns))
        self._gaps.look(e)
        return self._feed.take(e)

    def _go_to_next(self, begin: Callable[[], Callable[[], bool]]) -> bool:
        """On to the next tick at which what ``begin`` gives, called where the search begins, is true.

        What loops is searched from its start on too. Where there is none it stands where it stood: the way back is
        fed anew, as the model cannot go back.
        """
        with self._wake:
            at, start = self._at, self.recording.start_ns
            hit = self._search(begin())
            if not hit and self._loop:
                self._rewind(start)
                self._step_to_tick()
                hit = self._search(begin(), at)
            if not hit:
                self._rewind(at)
                while self._at < at and self._step_to_tick():
                    pass
            self._anchor()
            self._wake.notify_all()
            return hit

    def _search(self, found: Callable[[], bool], until: int | None = None) -> bool:
        while (until is None or self._at < until) and self._step_to_tick():
            if found():
                return True
        return False

    def _anchor(self) -> None:
        """From here on the pace is counted."""
        self._anchor_at, self._anchor_clock = self._at, self._clock()

    def _due(self) -> int:
        return self._anchor_at + int((self._clock() - self._anchor_clock) * self._speed * 1e9)

    def _run(self) -> None:
        with self._wake:
            while not self._stopping:
                if self._ended and self._loop and not self._paused:
                    self._rewind(self.recording.start_ns)
                    self._step_to_tick()
                    self._anchor()
                elif self._paused or self._ended:
                    self._wake.wait(1.0)
                elif self._due() > self._at:
                    self._step_to_tick()
                else:
                    self._wake.wait(min(max((self._at - self._due()) / 1e9 / self._speed, 0.002), 0.1))


class _New:
    """Whether something is there that was not at the call before."""

    def __init__(self, look: Callable[[], set[tuple[str, str | None]]]) -> None:
        self._look = look
        self._known = look()

    def __call__(self) -> bool:
        before, self._known = self._known, self._look()
        return bool(self._known - before)


class _Gaps:
    """Looks for long gaps between the steps of a rank in which its loop was not idle."""

    def __init__(self) -> None:
        self._end: dict[str, int] = {}
        self._usual: dict[str, float] = {}
        self._idle: dict[str, list[int]] = {}
        self._long: list[tuple[str, int, int]] = []
        self._stage: dict[str, int] = {}

    def look(self, e: Entry) -> None:
        """Note the long gaps and the idle segments of an entry."""
        f = e.frame
        if f.get("k") == "hello":
            self._end.pop(e.source, None)
            stages = list(f.get("stages") or STAGES)
            self._stage[e.source] = stages.index("idle") if "idle" in stages else -1
        if f.get("k") != "ev" or not f.get("n"):
            return
        try:
            if f["e"] == "step":
                self._steps(e.source, _column(f, "t0"), _column(f, "t1"))
            elif f["e"] == "stage":
                idle = _column(f, "stage") == self._stage.get(e.source, STAGES.index("idle"))
                self._idle.setdefault(e.source, []).extend(_column(f, "t1")[idle].tolist())
        except (KeyError, ValueError, TypeError):
            return  # the model counts malformed frames

    def _steps(self, source: str, t0: Ints, t1: Ints) -> None:
        before = np.concatenate([[self._end.get(source, int(t0[0]))], t1[:-1]])
        gaps = t0 - before
        self._end[source] = int(t1[-1])
        median = float(np.median(gaps))
        usual = self._usual.get(source, median)
        self._usual[source] = 0.9 * usual + 0.1 * median
        for i in np.flatnonzero(gaps >= max(GAP_NS, GAP_TIMES * usual)).tolist():
            self._long.append((source, int(before[i]), int(t0[i])))

    def take(self) -> bool:
        """Whether there was a long gap since the last call that no idle segment explains."""
        found = any(not any(a < t <= b for t in self._idle.get(source, ())) for source, a, b in self._long)
        self._long.clear()
        self._idle = {k: v[-64:] for k, v in self._idle.items()}
        return found


def _column(f: Mapping[str, Any], name: str) -> Ints:
    return np.frombuffer(f["c"][name], "<i8").astype(np.int64, copy=False)
