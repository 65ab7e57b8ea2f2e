"""A live session in small: simulated ranks through the real codec into the real model, tapped as a session is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sgtop_agent.wire import Frame, pack
from sgtop_core.findings.engine import Engine
from sgtop_core.model.model import Model, unknown_rank
from sgtop_core.model.snapshot import Attach, Gpu, Process, Server, Snapshot
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.feed import LOG_LINES
from sgtop_core.recording.quantise import quantise
from sgtop_core.recording.state import SOURCE, StateFrames
from sgtop_core.simulate.loop import SimRank, hello
from sgtop_core.simulate.scenes import SCENES
from sgtop_probes import codec

from tests.recording import recordings

S = 1_000_000_000
START = 1_000 * S
UNIX = 1_790_000_000.0


class Live:
    """Runs a scene; ``entries`` is what the taps were told, ``snapshots`` what was shown."""

    def __init__(self, scene: str, seed: int = 0, level: int = 0) -> None:
        s = SCENES[scene]
        self.now = START
        self.level = level
        self.entries: list[Entry] = []
        self.taps: list[Callable[[str, Frame, int], None]] = [lambda *e: self.entries.append(Entry(*e))]
        self.snapshots: list[Snapshot] = []
        self.model = Model()
        self.engine = Engine()
        self.state = StateFrames()
        self.sims: dict[str, SimRank] = {}
        self.readers = {}
        self.turn = 0
        self.model.server = Server(30000, "tiny", "0.5.20", s.tp, s.dp, 1)
        for r in range(s.tp * s.dp):
            label = f"TP{r}"
            sim = SimRank(r, s.behaviour, hello(r, tp=s.tp, dp=s.dp, now=self.now, **s.hello), self.now, seed)
            self.sims[label], self.readers[label] = sim, codec.reader()
            self.model.add(label, sim.hello["pid"])
            self.model.hello(label, sim.hello, self.now)
            self.tap(label, sim.hello)

    def tap(self, source: str, frame: Frame) -> None:
        for t in self.taps:
            t(source, frame, self.now)

    def run(self, seconds: float) -> Live:
        until = self.now + int(seconds * S)
        while self.now < until:
            self.now += 50_000_000
            self.turn += 1
            for label, sim in self.sims.items():
                sim.run(self.now)
                for frame in sim.frames(self.now):
                    for got in self.readers[label].feed(pack(frame)):
                        rounded = quantise(got)
                        self.tap(label, rounded)
                        self.model.frame(label, rounded, self.now)
            if self.turn % 20 == 0:
                self._surroundings()
            if self.model.advance(self.now):
                self._publish()
        return self

    def _surroundings(self) -> None:
        """What a session learns from elsewhere."""
        m = self.model
        m.slots["TP0"].cpu_share = 0.5 + self.turn / 1000
        m.slots["TP0"].message = f"turn {self.turn}"
        m.client_cpu = 0.01
        m.processes = (Process("tokenizer", 7, 0.1, 1000, 3),)
        m.gpus = (Gpu(0, "GPU-1", "H200", ("TP0",), kernel_running=self.turn / 1000),)
        m.attach = Attach("pending-call", "live", f"turn {self.turn}")
        if self.turn == 60:
            m.add("TP9", 123, "agentless", "no permission")
            m.slots["TP9"].outside = unknown_rank("TP9", 123, "agentless", "no permission")

    def _publish(self) -> None:
        unix = UNIX + self.now / S
        alerts = self.engine.look(self.model, self.now, unix)
        if alerts is not None:
            self.model.alerts = alerts
            self.model.log = (*self.model.log, f"turn {self.turn}", *self.engine.drain_log())[-LOG_LINES:]
        self.snapshots.append(self.model.snapshot(self.level, self.now, unix))
        for frame in self.state.frames(self.model, unix):
            self.tap(SOURCE, frame)

    def write(self, path: Path) -> Path:
        return recordings.write(path, self.entries)
