"""Brings scheduling samples to the model: each rank's causes of gaps and its ``cpu`` view. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgtop_agent.wire import Frame
from sgtop_probes.sched.types import SchedBatch

from sgtop_core.contention.facts import HostFacts
from sgtop_core.contention.rank import RankCpu
from sgtop_core.model.model import Model
from sgtop_core.recording.envelope import from_frame


class ContentionFeed:
    """Owns a RankCpu a rank. One thread; that of the model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._facts = HostFacts()
        self.ranks: dict[str, RankCpu] = {}

    def handlers(self) -> dict[str, Callable[[str, Frame, int], None]]:
        """For ``Intake.probes``: frames of recorded or live samples."""

        def batch(_source: str, frame: Frame, _now: int) -> None:
            self.batch(from_frame(frame, SchedBatch))

        def facts(_source: str, frame: Frame, _now: int) -> None:
            self.facts(from_frame(frame, HostFacts))

        return {SchedBatch.__name__: batch, HostFacts.__name__: facts}

    def take(self, event: Any) -> bool:
        """Take a SchedBatch or HostFacts; False for anything else."""
        if isinstance(event, SchedBatch):
            self.batch(event)
        elif isinstance(event, HostFacts):
            self.facts(event)
        else:
            return False
        return True

    def facts(self, facts: HostFacts) -> None:
        """The host, or which processes are ranks, has changed."""
        self._facts = facts
        for label in [k for k in self.ranks if k not in facts.ranks]:
            del self.ranks[label]
        for label, ids in facts.ranks.items():
            rank = self.ranks.get(label)
            if rank is None or (rank.pid, rank.tid) != (ids.pid, ids.tid):
                rank = self.ranks[label] = RankCpu(ids.pid, ids.tid)
            rank.kind_of = facts.kind
            rank.ended = frozenset(facts.ended_pids)
            rank.needs = facts.needs
            rank.place = facts.places.get(label, rank.place)

    def batch(self, batch: SchedBatch) -> None:
        """One poll's samples."""
        for label, rank in self.ranks.items():
            slot = self._model.slots.get(label)
            state = slot.state if slot is not None else None
            if state is not None:
                rank.begin(state.start)
            rank.feed(batch)
            if state is None:
                rank.discard()
                continue
            state.scheduling = rank
            for source in ("preempted", "throttled"):
                state.sources.expect(source)
            rank.drain(state.sources)
