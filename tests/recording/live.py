"""A live session in small: simulated ranks through the real codec and the real intake, recorded as it goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sgtop_agent.wire import pack
from sgtop_core.intake import SESSION, Intake
from sgtop_core.model.snapshot import Attach, Gpu, Process, Server, Snapshot
from sgtop_core.recording.chunk import Entry
from sgtop_core.simulate.loop import SimRank, hello
from sgtop_core.simulate.scenes import SCENES
from sgtop_probes import codec
from tests.recording import recordings

S = 1_000_000_000
START = 1_000 * S
UNIX = 1_790_000_000.0


class Live:
    """Runs a scene; ``entries`` is what a recorder's tap was told, ``snapshots`` what was shown."""

    def __init__(self, scene: str, seed: int = 0, level: int = 0) -> None:
        s = SCENES[scene]
        self.now = START
        self.level = level
        self.entries: list[Entry] = []
        self.snapshots: list[Snapshot] = []
        self.intake = Intake([lambda source, frame, t: self.entries.append(Entry(source, frame, t))])
        self.sims: dict[str, SimRank] = {}
        self.readers = {}
        self.intake.state(Server(30000, "tiny", "0.5.20", s.tp, s.dp, 1), self.now)
        self.intake.state(Attach("pending-call", "live"), self.now)
        for r in range(s.tp * s.dp):
            label = f"TP{r}"
            sim = SimRank(r, s.behaviour, hello(r, tp=s.tp, dp=s.dp, now=self.now, **s.hello), self.now, seed)
            self.sims[label], self.readers[label] = sim, codec.reader()
            self.intake.rank(label, sim.hello["pid"], "connecting", "", self.now)
            self.intake.take(label, sim.hello, self.now)

    def run(self, seconds: float) -> Live:
        until = self.now + int(seconds * S)
        turn = 0
        while self.now < until:
            self.now += 50_000_000
            turn += 1
            for label, sim in self.sims.items():
                sim.run(self.now)
                for frame in sim.frames(self.now):
                    for got in self.readers[label].feed(pack(frame)):
                        self.intake.take(label, got, self.now)
            if turn % 20 == 0:
                self.intake.slot("TP0", self.now, cpu_share=0.5 + turn / 1000)
                self.intake.client(0.01, self.now)
                self.intake.line(f"turn {turn}", self.now)
                self.intake.state((Process("tokenizer", 7, 0.1, 1000, 3),), self.now)
                self.intake.state((Gpu(0, "GPU-1", "H200", ("TP0",), kernel_running=0.5),), self.now)
            if self.intake.tick(self.now, UNIX + self.now / S):
                s = self.intake.snapshot(self.level)
                assert s is not None
                self.snapshots.append(s)
        return self

    def write(self, path: Path) -> Path:
        return recordings.write(path, self.entries)


def ticks_of(entries: list[Entry]) -> Iterator[Entry]:
    return (e for e in entries if e.source == SESSION and e.frame["k"] == "tick")
