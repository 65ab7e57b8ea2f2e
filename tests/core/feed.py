"""Feeds simulated ranks through the real codec into a Model."""

from __future__ import annotations

import numpy as np
from sgtop_agent.wire import TABLES, Frame, FrameReader, pack
from sgtop_core.findings.engine import Engine
from sgtop_core.model.model import Model
from sgtop_core.model.snapshot import Alert, Snapshot
from sgtop_core.simulate.loop import Behaviour, SimRank, hello
from sgtop_core.simulate.scenes import SCENES
from sgtop_probes import codec

S = 1_000_000_000


class Feed:
    """A model that is fed by simulated ranks, 50 ms at a time."""

    def __init__(self, behaviour: Behaviour, tp: int = 1, dp: int = 1, seed: int = 0, **hello_args) -> None:
        self.now = self.start = 1_000 * S
        self.model = Model()
        self.engine = Engine()
        self.alerts: tuple[Alert, ...] = ()
        self.ever: dict[str, Alert] = {}
        self.sent: dict[str, list[Frame]] = {}
        self.sims: dict[str, SimRank] = {}
        self.readers: dict[str, FrameReader] = {}
        for r in range(tp * dp):
            label = f"TP{r}" if dp == 1 else f"DP{r // tp}" if tp == 1 else f"DP{r // tp} TP{r % tp}"
            sim = SimRank(r, behaviour, hello(r, tp=tp, dp=dp, now=self.now, **hello_args), self.now, seed)
            self.sims[label] = sim
            self.readers[label] = codec.reader()
            self.model.add(label, sim.hello["pid"])
            self.model.hello(label, sim.hello, self.now)

    @classmethod
    def scene(cls, name: str, seed: int = 0) -> Feed:
        s = SCENES[name]
        return cls(s.behaviour, s.tp, s.dp, seed, **s.hello)

    def run(self, seconds: float, each=None) -> Model:
        until = self.now + int(seconds * S)
        while self.now < until:
            self.now += 50_000_000
            for label, sim in self.sims.items():
                sim.run(self.now)
                for frame in sim.frames(self.now):
                    if frame["k"] == "ev":
                        self.sent.setdefault(f"{label} {frame['e']}", []).append(frame)
                    for got in self.readers[label].feed(pack(frame)):
                        self.model.frame(label, got, self.now)
            if self.model.advance(self.now):
                alerts = self.engine.look(self.model, self.now, self.now / S)
                if alerts is not None:
                    self.alerts = alerts
                    self.ever.update({a.id: a for a in alerts})
                if each is not None:
                    each(self)
        return self.model

    def rank(self, level: int = 0, label: str = "TP0"):
        return next(r for r in self.model.ranks(level, self.now) if r.rank == label)

    def rows(self, table: str, label: str = "TP0") -> dict[str, np.ndarray]:
        """Everything that was sent of a table, by column."""
        frames = self.sent[f"{label} {table}"]
        return {c: np.concatenate([np.frombuffer(f["c"][c], "<i8") for f in frames]) for c in TABLES[table]}

    def snapshot(self, level: int = 0) -> Snapshot:
        return self.model.snapshot(level, self.now, 1.79e9 + self.now / S)
