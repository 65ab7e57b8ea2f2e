"""One rank: what its agent said of itself, and its part of what ``fleet`` counts for all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sgtop_agent.wire import STAGES, Frame

from sgtop_core.model.causes import Names, Sources
from sgtop_core.model.hist_bank import RankHists
from sgtop_core.model.snapshot import Cpu
from sgtop_core.model.steps import MODES
from sgtop_core.model.strip import RankStrip
from sgtop_core.model.time_bank import RankTimes

BUSY = " busy "
"""Begins the keys in ``stage_ns`` of the time inside forwards (their union), with the number of a forward's mode behind
it; no stage has a space in its name."""

MAX_STAGES = 32
"""Stages of a hello that are counted; wire.STAGES has eleven."""


class Scheduling(Protocol):
    """What the kernel's scheduler does to this rank's main thread; ``sgtop_core.contention`` has one."""

    def view(self, level: int, end: int) -> Cpu | None:
        """The window ``level`` that ends at ``end`` (ns)."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What the model needs of an agent's hello, whatever was missing in it."""

    raw: Mapping[str, Any]
    mode_names: Mapping[int, str]
    stages: tuple[str, ...]
    caps: frozenset[str]
    graph: Mapping[str, Any]

    @classmethod
    def of(cls, hello: Mapping[str, Any]) -> Hello:
        """Read a hello; never raises."""
        modes, stages, caps, graph = (hello.get(k) for k in ("modes", "stages", "caps", "graph"))
        return cls(
            raw=hello,
            mode_names={int(n): str(m) for m, n in modes.items() if isinstance(n, int)}
            if isinstance(modes, Mapping)
            else {},
            stages=tuple(str(s) for s in stages[:MAX_STAGES]) if isinstance(stages, (list, tuple)) else STAGES,
            caps=frozenset(str(c) for c in caps) if isinstance(caps, (list, tuple)) else frozenset(),
            graph=graph if isinstance(graph, Mapping) else {},
        )


@dataclass(slots=True)
class RankState:
    """What is known of one rank since the hello of its agent.

    Keys of ``durations``: ("step" | "step_gpu" | "gap", mode number), ("host" | "gpu", 64 × runner + mode number),
    ("gc", generation), ("hook", 0). Keys of ``counts``: ("bs", mode number). Keys of ``sums``: (what, mode number, or
    64 × runner + mode number for what begins with ``f_``). Keys of ``stage_ns``: stage, BUSY + mode
    number. Keys of ``cause_ns``: (mode number, cause number). Keys of ``held_ns``: cause number.
    """

    index: int
    """Its number among the ranks of the fleet."""
    about: Hello
    start: int
    """ns of the hello."""
    end: int
    """ns up to which everything is counted."""
    durations: RankHists[tuple[str, int]]
    counts: RankHists[tuple[str, int]]
    sums: RankTimes[tuple[str, int]]
    stage_ns: RankTimes[str]
    cause_ns: RankTimes[tuple[int, int]]
    held_ns: RankTimes[int]
    sources: Sources
    strip: RankStrip
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows by table that came faster than they were worked off."""
    queue: dict[str, int] = field(default_factory=dict)
    stat: Mapping[str, Any] = field(default_factory=dict)
    stat_before: Mapping[str, Any] = field(default_factory=dict)
    last_ct: int | None = None
    last_step_at: int | None = None
    forwards: tuple[int, int, int] | None = None
    """Begin of the first forward that is known, latest end of one (ns), and the newest step that had one."""
    mode_last: dict[int, int] = field(default_factory=dict)
    """Mode number → return of its last step, ns."""
    unknown_frames: int = 0
    bye: str | None = None
    scheduling: Scheduling | None = None

    @property
    def hello(self) -> Mapping[str, Any]:
        """The agent's hello."""
        return self.about.raw

    @property
    def caps(self) -> frozenset[str]:
        """What the agent can see."""
        return self.about.caps

    @property
    def graph(self) -> Mapping[str, Any]:
        """Which forwards can replay a graph."""
        return self.about.graph

    @property
    def label(self) -> str:
        """Kind of the gaps: ``gpu`` or ``host``."""
        return "gpu" if "gpu-events" in self.about.caps else "host"

    def mode_name(self, number: int) -> str:
        """SGLang's name of a mode; ``MODE_n`` where the hello has none."""
        return self.about.mode_names.get(number, f"MODE_{number}" if number != MODES - 1 else "UNKNOWN")

    @property
    def names(self) -> Names:
        """Causes as numbers."""
        return self.sources.names

    def lost(self, table: str) -> int:
        """Rows of ``table`` that the agent lost."""
        lost = self.stat.get("lost")
        n = lost.get(table, 0) if isinstance(lost, Mapping) else 0
        return n if isinstance(n, int) else 0

    def told(self, frame: Frame) -> None:
        """A ``stat`` or ``bye``."""
        if frame.get("k") == "bye":
            self.bye = str(frame.get("why", ""))
            return
        ct = frame.get("ct")
        if isinstance(ct, int) and ct >= 0:
            self.last_ct = max(self.last_ct or 0, ct)
        self.stat_before, self.stat = self.stat, frame
