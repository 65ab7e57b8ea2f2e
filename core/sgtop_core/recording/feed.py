"""Recorded entries into a model: the same calls at the same times as the live session made."""

from __future__ import annotations

from collections.abc import Callable

from sgtop_agent.wire import Frame, WireError

from sgtop_core.contention.feed import ContentionFeed
from sgtop_core.findings.engine import Engine
from sgtop_core.model.model import Model
from sgtop_core.model.snapshot import Snapshot

from . import state
from .chunk import Entry
from .envelope import KIND as PROBE
from .quantise import quantise

LOG_LINES = 200
MODEL_KINDS = frozenset({"ev", "stat", "bye", "switch"})
"""Agent frames that change the model, besides hello."""

Handler = Callable[[str, Frame, int], None]


class Feed:
    """A model and its findings, fed with entries."""

    def __init__(self) -> None:
        self.model = Model()
        self.engine = Engine()
        self.probes: dict[str, Handler] = dict(ContentionFeed(self.model).handlers())
        """Name of a probe's dataclass → who takes its frames."""
        self.malformed = 0
        """Frames that could not be read."""
        self.now = 0
        self.unix: float | None = None
        """CLOCK_MONOTONIC ns and Unix seconds of the latest tick."""

    def take(self, e: Entry) -> bool:
        """Take an entry; whether it was a tick at which the live session made a snapshot. Never raises."""
        try:
            return self._take(*e)
        except (WireError, KeyError, TypeError, ValueError):
            self.malformed += 1
            return False

    def _take(self, source: str, frame: Frame, now: int) -> bool:
        kind = frame.get("k")
        if source == state.SOURCE:
            if kind == "tick":
                return self._tick(now, float(frame["unix"]))
            state.apply(self.model, frame, LOG_LINES)
        elif kind == PROBE:
            handler = self.probes.get(str(frame.get("e")))
            if handler is not None:
                handler(source, frame, now)
        elif kind == "hello":
            self.model.hello(source, frame, now)
        elif kind in MODEL_KINDS:
            # Rounding what is rounded changes nothing; a recording of raw frames gets what the live path gives.
            self.model.frame(source, quantise(frame), now)
        return False

    def _tick(self, now: int, unix: float) -> bool:
        if not self.model.advance(now):
            return False
        self.now, self.unix = now, unix
        alerts = self.engine.look(self.model, now, unix)
        if alerts is not None:
            self.model.alerts = alerts
        self.engine.drain_log()  # the session's log, with these lines in it, is recorded
        return True

    def snapshot(self, level: int) -> Snapshot | None:
        """The window ``level`` at the latest tick; None before the first."""
        return None if self.unix is None else self.model.snapshot(level, self.now, self.unix)
