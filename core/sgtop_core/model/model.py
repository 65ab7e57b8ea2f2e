"""All ranks of one server: frames in, a look at any window out. Pure: the clock comes as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sgtop_agent.wire import Frame

from sgtop_core.model.bins import Durations, quantiles
from sgtop_core.model.fleet import Fleet
from sgtop_core.model.gpu_modes import GpuModes, share_of
from sgtop_core.model.kernel_rank import with_kernels
from sgtop_core.model.kernel_view import KernelView
from sgtop_core.model.rank import BUSY, RankState
from sgtop_core.model.rank_view import RankView
from sgtop_core.model.snapshot import Alert, Attach, Gpu, Overhead, Process, Queue, Rank, Server, Snapshot
from sgtop_core.model.strip import cell_s
from sgtop_core.model.switches import SwitchModel
from sgtop_core.model.windows import TICK_NS, WINDOWS

LAG_NS = 300_000_000
"""Snapshots end this long ago or longer: the agent flushes every 200 ms, and the session reads every 50 ms."""

HUNG_NS = 10_000_000_000
"""A rank with requests that has made no step for this long is hung."""

SILENT_NS = 2_000_000_000
"""An agent that has sent nothing for this long (it sends five times a second) is not running."""


@dataclass(slots=True)
class Slot:
    """A rank as the session knows it: events if there are any, and the rest in words."""

    pid: int | None
    status: str = "connecting"
    message: str = ""
    state: RankState | None = None
    heard: int = 0
    """ns of the latest frame."""
    awake: int = 0
    """ns when sgtop itself went on after it had stood still; nothing before it says anything about the server."""
    cpu_share: float | None = None
    where: str = ""
    """Innermost Python frame of the main thread, where it was asked for."""
    stopped: bool = False
    """A signal has stopped the process; only looked at while its agent is silent."""
    outside: Rank | None = None
    """What HTTP and /proc say, for a rank without an agent."""
    lost_before: dict[str, int] = field(default_factory=dict)
    kernels: KernelView | None = None
    """Kernel tracing, where a client asked for it."""


class Model:
    """The state of all ranks. Not thread-safe: one thread owns it.

    What no event says (server, way of attaching, processes, GPUs, alerts, log) is set by the owner and passed on.
    """

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.end = 0
        self._fleet = Fleet()
        self._switches = SwitchModel()
        self._gpu_modes = GpuModes()
        self._counted: dict[tuple[str, int], Rank] = {}
        """(label, level) → what the events up to ``end`` say; screen and findings look at the same windows."""
        self.server = Server(None, None, None, None, None, None)
        self.attach = Attach(None, "connecting")
        self.processes: tuple[Process, ...] = ()
        self.gpus: tuple[Gpu, ...] = ()
        self.alerts: tuple[Alert, ...] = ()
        self.log: tuple[str, ...] = ()
        self.client_cpu: float | None = None
        self.outside_s = 0.0
        """Seconds that what is known of ranks without an agent is of."""

    def add(self, label: str, pid: int | None, status: str = "connecting", message: str = "") -> Slot:
        """Add a rank, or change what is said about it."""
        s = self.slots.get(label)
        if s is None:
            s = self.slots[label] = Slot(pid, status, message)
        else:
            if s.pid != pid:  # another process: nothing of the old one holds
                s.state, s.outside, s.lost_before, s.kernels = None, None, {}, None
            s.pid, s.status, s.message = pid, status, message
        return s

    def hello(self, label: str, hello: Mapping[str, Any], now: int) -> RankState:
        """An agent has answered: the rank starts anew."""
        s = self.slots.setdefault(label, Slot(None))
        self._switches.hello(label, hello)
        s.state = None
        self._counted.clear()
        self._fleet.keep(self._states())
        s.state, s.status, s.message, s.heard, s.where = self._fleet.hello(hello, now, label), "live", "", now, ""
        return s.state

    def _states(self) -> list[RankState]:
        return [s.state for s in self.slots.values() if s.state is not None]

    def frame(self, label: str, frame: Frame, now: int) -> None:
        """Take a frame of a rank's agent. ``now`` (ns) is when it was read.

        Raises:
            WireError: the frame is malformed.
        """
        s = self.slots.get(label)
        if s is None or s.state is None:
            return
        s.heard = now
        if self._switches.frame(label, frame, now):
            return
        self._fleet.frame(s.state, frame)

    def advance(self, now: int) -> bool:
        """Move all ranks to the last tick that is complete at ``now`` (ns).

        Returns:
            Whether there was a new tick.
        """
        end = (now - LAG_NS) // TICK_NS * TICK_NS
        if end <= self.end:
            return False
        self.end = end
        self._counted.clear()
        self._fleet.keep(self._states())
        self._fleet.advance(end)
        self._gpu_modes.look(self.gpus, end, self)
        return True

    def gpu_ns(self, rank: str, a: int, b: int) -> Mapping[str, float] | None:
        """GPU time (ns) of a rank's forwards by mode between ``a`` and ``b`` (ns, in the last 5 s); None: not known."""
        slot = self.slots.get(rank)
        state = slot.state if slot is not None else None
        if state is None or state.label != "gpu":
            return None
        newest = (self.end - 1) // TICK_NS
        out: dict[str, float] = {}
        for key in state.stage_ns.read(0):
            slots = state.stage_ns.slots(0, key) if key.startswith(BUSY) else None
            ns = share_of(slots.tolist(), newest, a, b) if slots is not None else 0.0
            if ns > 0:
                out[state.mode_name(int(key.removeprefix(BUSY)))] = ns
        return out

    def snapshot(self, level: int, now: int, unix: float) -> Snapshot:
        """Everything in the window ``level``. ``now`` is CLOCK_MONOTONIC in ns, ``unix`` the same moment in seconds."""
        return Snapshot(
            time=unix,
            mono_ns=now,
            window_s=WINDOWS[level].seconds,
            covered_s=self.covered_s(level),
            server=self.server,
            attach=self.attach,
            ranks=self.ranks(level, now),
            overhead=self.overhead(level),
            lost=self.lost(),
            alerts=self.alerts,
            processes=self.processes,
            strip_cell_s=cell_s(level),
            log=self.log,
            gpus=self._gpu_modes.view(self.gpus, level, self.end),
            switches=self._switches.groups(self.slots, now),
        )

    def awoke(self, now: int) -> None:
        """Whoever watches was stopped or starved until now: what was not heard meanwhile is no news of the server."""
        for s in self.slots.values():
            s.awake = now

    def hung(self, now: int) -> list[tuple[str, str]]:
        """Ranks that hang although their agent is connected: (label, "silent" or "stuck")."""
        out = []
        for label, s in self.slots.items():
            if s.state is not None and s.status == "live" and verdict(s, now)[0] == "hung":
                out.append((label, "silent" if now - max(s.heard, s.awake) > SILENT_NS else "stuck"))
        return out

    def why_hung(self, now: int) -> str:
        """In words, of the first rank that hangs."""
        for label, s in self.slots.items():
            if s.status == "live" and (v := verdict(s, now))[0] == "hung":
                return f"{label}: {v[1]}"
        return ""

    # --- views ----------------------------------------------------------------------------------------

    def covered_s(self, level: int) -> float:
        """Seconds that the window really holds, of the rank that is watched longest."""
        w = WINDOWS[level]
        spans = [w.span(self.end, s.state.start) / 1e9 for s in self.slots.values() if s.state]
        return max(spans) if spans else min(self.outside_s, w.seconds)

    def ranks(self, level: int, now: int) -> tuple[Rank, ...]:
        """Every rank in the window ``level``."""
        return tuple(self._rank(label, s, level, now) for label, s in self.slots.items())

    def _rank(self, label: str, s: Slot, level: int, now: int) -> Rank:
        if s.state is None:
            if s.outside is not None:
                return s.outside
            return unknown_rank(label, s.pid, s.status, s.message, s.cpu_share)
        status, message = s.status, s.message
        if status == "live":
            status, message = verdict(s, now)
        counted = self._counted.get((label, level))
        if counted is None:
            counted = self._counted[label, level] = RankView(s.state, level).rank(label)
        last = s.state.last_step_at
        rank = replace(
            counted,
            pid=s.pid,
            state=status,
            message=message,
            cpu_share=s.cpu_share,
            last_step=s.state.last_ct,
            last_step_age_s=None if last is None else max(now - last, 0) / 1e9,
        )
        return rank if s.kernels is None else with_kernels(rank, s.kernels)

    def overhead(self, level: int) -> Overhead:
        """Cost of the hooks over all ranks, and of the worst agent thread."""
        total = None
        agent: float | None = None
        for s in self.slots.values():
            st = s.state
            if st is None:
                continue
            key = ("hook", 0)
            if key in st.durations:
                hist = st.durations.histogram(level, key)
                total = hist.astype(np.int64) if total is None else total + hist
            share = _cpu(st.stat_before, st.stat)
            if share is not None:
                agent = max(agent or 0.0, share)
        p50 = p99 = None
        if total is not None:
            p50, p99 = (None if v is None else v / 1e3 for v in quantiles(total, Durations.middles(), (0.5, 0.99)))
        return Overhead(p50, p99, self.client_cpu, agent)

    def lost(self) -> dict[str, int]:
        """Rows lost by table: in the agents' rings, and here where frames came faster than they were worked off."""
        out: dict[str, int] = {}
        for s in self.slots.values():
            if s.state is None:
                continue
            lost = s.state.stat.get("lost")
            for table, n in (*(lost.items() if isinstance(lost, Mapping) else ()), *s.state.dropped.items()):
                if isinstance(n, int) and n > 0:
                    out[str(table)] = out.get(str(table), 0) + n
        return out


def verdict(s: Slot, now: int) -> tuple[str, str]:
    """(state, message) of a rank whose agent is connected: live, or hung and why."""
    st = s.state
    if st is None:
        return s.status, s.message
    silent = now - max(s.heard, s.awake)
    if silent > SILENT_NS:
        why = "the process is stopped, or C code holds the GIL"
        if s.stopped:
            why = f"the process is stopped (`kill -CONT {s.pid}` lets it go on)"
        return "hung", f"nothing heard from the agent for {silent / 1e9:.0f} s: {why}"
    q = st.queue
    busy = q.get("running", 0) > 0 or q.get("waiting", 0) > 0
    since = now - max(st.last_step_at or 0, st.start, s.awake)
    if busy and since > HUNG_NS and q.get("paused", 0) != 1 and not _idle_since(st, now):
        where = f", in {s.where}" if s.where else ""
        return "hung", f"no step for {since / 1e9:.0f} s with {q.get('running', 0)} running{where}"
    return "live", ""


def _idle_since(st: RankState, now: int) -> bool:
    """The loop turned lately and found no work (queue figures may be older)."""
    return now - st.sources.mark("idle") < SILENT_NS


def _cpu(before: Mapping[str, Any], now: Mapping[str, Any]) -> float | None:
    try:
        wall = now["t"] - before["t"]
        return float((now["agent_cpu_ns"] - before["agent_cpu_ns"]) / wall) if wall > 0 else None
    except (KeyError, TypeError):
        return None


def unknown_rank(label: str, pid: int | None, state: str, message: str, cpu: float | None = None) -> Rank:
    """A rank of which nothing is known but that it exists."""
    return Rank(
        rank=label,
        pid=pid,
        state=state,
        message=message,
        last_step=None,
        last_step_age_s=None,
        modes={},
        forwards=(),
        stages_s={},
        queue=Queue(None, None),
        kv_usage=None,
        gaps=None,
        gc=None,
        cpu_share=cpu,
    )
