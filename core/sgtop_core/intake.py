"""The one path from events to snapshots: the live session and a replay both go through here.

Everything that can change a snapshot comes in as a frame with its source and time: the agents' frames as they are,
what sgtop finds out for itself as frames of source ``SESSION`` (below) or of a probe. ``take`` rounds the times, shows
the frame to the taps (a recorder, the exporter's totals) and applies it. So a recording holds what the model was fed,
and feeding it again gives the same snapshots, digit by digit.

No I/O and no clock: whoever owns it says what time it is. Not thread-safe: one thread owns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sgtop_agent.wire import Frame, WireError

from sgtop_core.findings.engine import Engine
from sgtop_core.model.model import Model
from sgtop_core.model.snapshot import Attach, Gpu, Process, Rank, Server, Snapshot
from sgtop_core.recording.envelope import KIND as PROBE
from sgtop_core.recording.envelope import from_frame, to_frame
from sgtop_core.recording.quantise import quantise

SESSION = "session"
"""Source of the frames that sgtop makes itself."""
LOG_LINES = 200


class Tap(Protocol):
    """Sees every frame before the model does; must neither block nor raise."""

    def __call__(self, source: str, frame: Frame, mono_ns: int, /) -> None: ...


Handler = Callable[[str, Frame, int], None]


class Intake:
    """A model, its findings and its log, fed by frames.

    Frames of ``SESSION``, made by the methods of the same names: ``rank`` (label, pid, status, message), ``slot``
    (label and any of cpu_share, where), ``client`` (cpu), ``line`` (text), ``tick`` (unix); and dataclasses by
    :meth:`state`: Server, Attach, Process and Gpu tuples, a Rank seen from outside.
    """

    def __init__(self, taps: Sequence[Tap] = (), engine: Engine | None = None) -> None:
        self.taps: list[Tap] = list(taps)
        self.model = Model()
        self.engine = engine or Engine()
        self.probes: dict[str, Handler] = {}
        """Name of a probe's dataclass → who takes its frames (scheduling samples, kernels, …)."""
        self.malformed = 0
        """Agent frames that could not be read."""
        self.unix: float | None = None
        self.now = 0
        """Unix seconds and CLOCK_MONOTONIC ns of the latest tick."""
        self._log: deque[str] = deque(maxlen=LOG_LINES)

    # --- what a live session says ---------------------------------------------------------------------

    def rank(self, label: str, pid: int | None, status: str, message: str, now: int) -> None:
        """A rank is there, or what is said about it has changed."""
        frame = {
            "k": "rank",
            "label": label,
            "pid": pid,
            "status": status,
            "message": message,
            "sticky": f"rank {label}",
        }
        self.take(SESSION, frame, now)

    def slot(self, label: str, now: int, **what: Any) -> None:
        """Figures of a rank from outside its agent: ``cpu_share``, ``where``."""
        self.take(SESSION, {"k": "slot", "label": label, **what}, now)

    def client(self, cpu: float | None, now: int) -> None:
        """Sgtop's own CPU share."""
        self.take(SESSION, {"k": "client", "cpu": cpu}, now)

    def line(self, text: str, now: int) -> None:
        """A line for the log."""
        self.take(SESSION, {"k": "line", "text": text}, now)

    def state(self, what: Any, now: int, label: str = "") -> None:
        """A Server, an Attach, a tuple of Process or Gpu, or the Rank ``label`` as HTTP and /proc show it."""
        if isinstance(what, tuple):
            kind = type(what[0]).__name__ if what else ""
            frame: Frame = {"k": "list", "of": kind, "items": [to_frame(x)["x"] for x in what]}
        else:
            frame = {**to_frame(what), "sticky": type(what).__name__ + label, "label": label}
        self.take(SESSION, frame, now)

    def tick(self, now: int, unix: float) -> bool:
        """Time has passed. Whether there is something new to show: call :meth:`snapshot` with the same times then."""
        before = self.model.end
        self.take(SESSION, {"k": "tick", "unix": unix}, now)
        return self.model.end != before

    # --- the path -------------------------------------------------------------------------------------

    def take(self, source: str, frame: Frame, now: int) -> None:
        """Take a frame: round, tap, apply. A malformed frame is counted, never raised."""
        frame = quantise(frame)
        for tap in self.taps:
            tap(source, frame, now)
        try:
            if source == SESSION:
                self._session(frame, now)
            elif frame.get("k") == PROBE:
                handler = self.probes.get(str(frame.get("e")))
                if handler is not None:
                    handler(source, frame, now)
            elif frame.get("k") == "hello":
                self.model.hello(source, frame, now)
            else:
                if frame.get("k") == "note":
                    self._log.append(f"{source}: {frame.get('text')}")
                self.model.frame(source, frame, now)
        except (WireError, KeyError, TypeError, ValueError):
            self.malformed += 1

    def _session(self, f: Frame, now: int) -> None:
        kind, m = f.get("k"), self.model
        if kind == "tick":
            unix = float(f["unix"])
            if m.advance(now):
                self.unix, self.now = unix, now
                alerts = self.engine.look(m, now, self.unix)
                if alerts is not None:
                    m.alerts = alerts
                self._log.extend(self.engine.drain_log())
                m.log = tuple(self._log)
        elif kind == "rank":
            m.add(str(f["label"]), f.get("pid"), str(f["status"]), str(f["message"]))
        elif kind == "slot":
            slot = m.slots.get(str(f["label"]))
            if slot is not None:
                slot.cpu_share = f.get("cpu_share", slot.cpu_share)
                slot.where = f.get("where", slot.where)
        elif kind == "client":
            m.client_cpu = f.get("cpu")
        elif kind == "line":
            self._log.append(str(f["text"]))
        elif kind == "list":
            self._list(f)
        elif kind == PROBE:
            self._object(f)

    def _list(self, f: Frame) -> None:
        def items(cls: type[Any]) -> tuple[Any, ...]:
            return tuple(from_frame({"k": PROBE, "e": cls.__name__, "x": x}, cls) for x in f["items"])

        if f["of"] == Gpu.__name__:
            self.model.gpus = items(Gpu)
        elif f["of"] == Process.__name__:
            self.model.processes = items(Process)

    def _object(self, f: Frame) -> None:
        m, name = self.model, f.get("e")
        if name == Server.__name__:
            m.server = from_frame(f, Server)
        elif name == Attach.__name__:
            m.attach = from_frame(f, Attach)
        elif name == Rank.__name__:
            slot = m.slots.get(str(f["label"]))
            if slot is not None:
                slot.outside = from_frame(f, Rank)

    def snapshot(self, level: int) -> Snapshot | None:
        """The window ``level`` at the latest tick; None before the first."""
        if self.unix is None:
            return None
        return self.model.snapshot(level, self.now, self.unix)


def is_tick(source: str, frame: Mapping[str, Any]) -> bool:
    """Whether this entry of a recording is a tick, at which the live session made a snapshot."""
    return source == SESSION and frame.get("k") == "tick"
