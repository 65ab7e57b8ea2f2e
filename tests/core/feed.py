"""Feeds simulated ranks through the real codec into a Model."""

from __future__ import annotations

from sgtop_agent.wire import FrameReader, pack
from sgtop_core.model.model import Model
from sgtop_core.simulate.loop import Behaviour, SimRank, hello

S = 1_000_000_000


class Feed:
    def __init__(self, behaviour: Behaviour, ranks: int = 1, **hello_args) -> None:
        self.now = self.start = 1_000 * S
        self.model = Model()
        self.sims: dict[str, SimRank] = {}
        self.readers: dict[str, FrameReader] = {}
        for r in range(ranks):
            sim = SimRank(r, behaviour, hello(r, tp=ranks, now=self.now, **hello_args), self.now)
            self.sims[f"TP{r}"] = sim
            self.readers[f"TP{r}"] = FrameReader()
            self.model.add(f"TP{r}", sim.hello["pid"])
            self.model.hello(f"TP{r}", sim.hello, self.now)

    def run(self, seconds: float, each=None) -> Model:
        until = self.now + int(seconds * S)
        while self.now < until:
            self.now += 50_000_000
            for label, sim in self.sims.items():
                sim.run(self.now)
                for frame in sim.frames(self.now):
                    for got in self.readers[label].feed(pack(frame)):
                        self.model.frame(label, got, self.now)
            if self.model.advance(self.now) and each is not None:
                each(self)
        return self.model

    def rank(self, level: int = 0, label: str = "TP0"):
        return next(r for r in self.model.ranks(level, self.now) if r.rank == label)
