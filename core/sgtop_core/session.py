"""A live session: finds the server, attaches to every rank, keeps the model, makes four snapshots a second.

One thread owns the model and all connections; attaching, watching processes and HTTP have threads of their own, which
only leave results behind. The loop wakes twice a tick, once of these as the tick becomes complete.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sgtop_agent import wire
from sgtop_probes import discovery
from sgtop_probes.attach.ladder import WAYS
from sgtop_probes.client import ConnectionLost
from sgtop_probes.sched.threads import main_thread

from sgtop_core.contention.facts import RankIds
from sgtop_core.contention.feed import ContentionFeed
from sgtop_core.contention.host_watch import HostWatch
from sgtop_core.findings.engine import Engine
from sgtop_core.live.about import as_a_whole, from_hello, from_info, from_processes, number
from sgtop_core.live.backend import Backend, Http, Machine
from sgtop_core.live.hung import HungRanks
from sgtop_core.live.kernel_feed import KernelFeed
from sgtop_core.live.link import Failure, Link
from sgtop_core.live.orders import DETACH_S, Orders
from sgtop_core.live.watch import Outcome, Watch
from sgtop_core.model.arrays import I64
from sgtop_core.model.model import LAG_NS, SILENT_NS, Model, unknown_rank
from sgtop_core.model.snapshot import Attach, Snapshot
from sgtop_core.model.windows import TICK_NS, WINDOWS, level
from sgtop_core.recording.envelope import to_frame
from sgtop_core.recording.kernels import kernels_frame
from sgtop_core.recording.state import SOURCE, StateFrames
from sgtop_core.switches.control import OPS as SWITCH_OPS
from sgtop_core.switches.control import Switches

TURN_NS = TICK_NS // 2
LOG_LINES = 200

HOST = "host"
"""Source of the frames of what sgtop reads of this host."""

Tap = Callable[[str, wire.Frame, int], None]
"""(source, frame, CLOCK_MONOTONIC ns): sees every frame of an agent, hellos included, under the label of its rank, and
after each snapshot what the session knows besides, as frames of ``session`` (recording.state)."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to watch. ``ways``: rungs of the attach ladder; none: agentless."""

    readonly: bool = False
    nvtx: bool = False
    window_s: float = 5.0
    ways: tuple[str, ...] = WAYS
    kernels: str = "off"
    """Kernel tracing from the start: off, windows, on."""


class Session:
    """Watches one server until ``stop``."""

    def __init__(
        self,
        target: str | None = None,
        options: SessionOptions | None = None,
        *,
        backend: Backend | None = None,
        host: HostWatch | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.options = options or SessionOptions()
        self.taps: list[Tap] = []
        self._target = target
        self._backend: Backend = backend or Machine(self.options.ways)
        self._clock, self._wall = clock, wall
        self._model = Model()
        self._engine = Engine()
        self._level = level(self.options.window_s)
        self._links: dict[str, Link] = {}
        self._server: discovery.Server | None = None
        self._watch = Watch(self._backend, clock, self._kick)
        # Another machine than this one (tests, a replay) has no scheduler of its own to look at.
        self._host = host if host is not None or backend is not None else HostWatch(wake=self._kick)
        self._contention = ContentionFeed(self._model)
        self._kernels = KernelFeed(self._model, self.options.kernels)
        self._kernels.on_block = self._raw_kernels
        self.switches = Switches(self)
        self._orders = Orders(self._links, self._kernels, self.options.readonly, self._kick)
        self._hung = HungRanks(self._model, self._orders, self._backend.stopped)
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._state = StateFrames()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu: deque[tuple[int, int]] = deque(maxlen=6)
        self._next_cpu = 0
        self._turned = clock()
        self._ended = ""
        self._snapshot: Snapshot | None = None

    # --- for screens and commands; any thread -----------------------------------------------------------

    @property
    def readonly(self) -> bool:
        """Whether everything that would change the server is refused."""
        return self.options.readonly

    @property
    def lacks_permission(self) -> bool:
        """Whether a rank has no agent because a permission is missing."""
        return any(link.failure and link.failure.kind == "permission" for link in list(self._links.values()))

    def start(self) -> None:
        """Find the server and begin.

        Raises:
            TargetError: there is no such server; nothing was started.
        """
        server = self._backend.resolve(self._target)
        self._adopt(server)
        self._publish(self._clock(), self._wall())
        self._thread = threading.Thread(target=self._run, name="sgtop-session", daemon=True)
        self._watch.start(server)
        if self._host is not None:
            self._host.start()
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """The newest snapshot; never waits."""
        s = self._snapshot
        if s is None:
            raise RuntimeError("the session was not started")
        return s

    def set_window(self, seconds: float) -> None:
        """Choose the window of all figures: the shortest of 5 s, 60 s and 10 min that holds ``seconds``."""
        self._level = level(seconds)

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the agent of ``rank`` (None: of every rank) to do ``op``; waits up to 5 s.

        Returns:
            ``{"ok": bool, "result" | "error": …}``; for every rank the result is a map by label.
        """
        if op in SWITCH_OPS:
            return self.switches.command(op, args)
        return self._orders.command(rank, op, args)

    def ask(
        self, rank: str, op: str, args: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> tuple[Mapping[str, Any], list[int]]:
        """One command to the agent of ``rank``, with descriptors both ways; those that come are the caller's."""
        return self._orders.ask(rank, op, args, fds)

    def hellos(self) -> dict[str, wire.Frame | None]:
        """Label → hello of its agent, None where there is no agent; ranks elsewhere among them."""
        links = {label: k.connection for label, k in list(self._links.items())}
        elsewhere = dict.fromkeys(self._model.server.ranks_elsewhere)
        return {**elsewhere, **{label: None if c is None else c.hello for label, c in links.items()}}

    def http(self) -> Http | None:
        """The server's HTTP interface, None where it serves none."""
        return self._backend.http(self._server) if self._server is not None else None

    def stop(self) -> None:
        """Detach: every hook undone, every thread ended. Safe to call twice."""
        self._stop.set()
        self._kick()
        self._watch.stop()
        if self._host is not None:
            self._host.stop()
        if self._thread is not None:
            self._thread.join(timeout=DETACH_S + 2.0)
            self._thread = None

    def _kick(self) -> None:
        self._wake.set()

    # --- the session's thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.wait((TURN_NS - (self._clock() - LAG_NS) % TURN_NS) / 1e9)
                self._wake.clear()
                try:
                    self._turn()
                except Exception as e:  # what is shown must go on, and say what went wrong
                    self._note(f"a mistake in sgtop itself: {type(e).__name__}: {e}")
        finally:
            self._orders.detach()
            self._kernels.close()
            self._orders.release()

    def _turn(self) -> None:
        now = self._clock()
        if now - self._turned > SILENT_NS:
            self._model.awoke(now)
        self._turned = now
        for outcome in self._watch.drain():
            self._outcome(outcome)
        for label, link in list(self._links.items()):
            self._drive(label, link, now)
        self._look_at_host()
        for label, op, args in self._kernels.turn(now, WINDOWS[self._level].seconds):
            self._orders.queue(label, op, args)
        while self._kernels.said:
            self._note(self._kernels.said.pop(0))
        self._orders.send()
        self._measure_self(now)
        if self._model.advance(now):
            self._hung.look(now)
            unix = self._wall()
            alerts = self._engine.look(self._model, now, unix)
            if alerts is not None:
                self._model.alerts = alerts
                self._log.extend(self._engine.drain_log())
            self._publish(now, unix)
            if self.taps:
                # What no agent said goes to the taps too: a recording holds everything that a snapshot is made of.
                for frame in self._state.frames(self._model, unix):
                    self._tap(SOURCE, frame, now)

    def _raw_kernels(self, label: str, columns: Mapping[str, I64]) -> None:
        """Single kernels go to the taps only: the model counts tables of them."""
        if self.taps:
            self._tap(label, kernels_frame(columns), self._clock())

    def _look_at_host(self) -> None:
        """Scheduling samples, places and GPUs that have been read since the turn before."""
        if self._host is None:
            return
        for at, event in self._host.drain():
            if isinstance(event, tuple):
                self._model.gpus = event
                continue
            if self.taps:
                self._tap(HOST, to_frame(event), at)
            self._contention.take(event)

    def _watch_host(self) -> None:
        """Say which processes are ranks, and whose they are."""
        server = self._server
        if self._host is None or server is None:
            return
        ranks: dict[str, RankIds] = {}
        for label, link in self._links.items():
            pid = link.rank.pid
            if pid is None:
                continue
            hello = link.connection.hello if link.connection is not None else {}
            tid, inside = number(hello.get("tid")), number(hello.get("pid"))
            own = tid is None or tid == inside
            ranks[label] = RankIds(pid, pid if own else main_thread(pid, tid or pid), number(hello.get("gpu")))
        pids = [server.pid, *(r.pid for r in server.ranks if r.pid is not None), *(h.pid for h in server.helpers)]
        self._host.watch(ranks, [] if self._ended else pids)

    def _publish(self, now: int, unix: float) -> None:
        self._model.attach = self._attach()
        self._model.log = tuple(self._log)
        self._snapshot = self._model.snapshot(self._level, now, unix)

    def _note(self, text: str) -> None:
        line = f"{time.strftime('%H:%M:%S', time.localtime(self._wall()))} {text}"
        if not self._log or self._log[-1][9:] != text:
            self._log.append(line)

    # --- server -----------------------------------------------------------------------------------------

    def _adopt(self, server: discovery.Server) -> None:
        """Watch this server from now on: a link for each of its ranks here."""
        self._kernels.close()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._server, self._ended = server, ""
        model = self._model
        here = {r.label for r in server.ranks if r.pid is not None}
        for label in [k for k in model.slots if k not in here]:
            del model.slots[label]
        model.server = from_processes(server)
        for r in server.ranks:
            if r.pid is not None:
                model.add(r.label, r.pid, "starting" if r.state == "starting" else "connecting")
                self._links[r.label] = Link(r, self._backend, self.options.nvtx, self._kick)
        self._watch_host()

    def _outcome(self, o: Outcome) -> None:
        if o.gone:
            self._gone(o.gone)
        if o.server is not None:
            self._note(f"server found: {o.server.name} (pid {o.server.pid}), {len(o.server.ranks)} ranks")
            self._adopt(o.server)
        if o.processes is not None:
            self._processes(o)
        if o.ranks:
            self._model.outside_s = o.seen_s
        for label, rank in o.ranks.items():
            slot = self._model.slots.get(label)
            if slot is not None and slot.state is None:
                seen = self._contention.ranks.get(label)
                cpu = seen.view(self._level, self._model.end) if seen is not None else None
                slot.outside = replace(rank, cpu=cpu)
        if o.info:
            self._model.server = from_info(self._model.server, o.info)

    def _gone(self, why: str) -> None:
        self._ended = why
        self._note(why)
        for label, link in self._links.items():
            link.close()
            slot = self._model.slots.get(label)
            if slot is not None:
                slot.status, slot.message = "lost", "its process has ended"
        self._links.clear()
        self._kernels.close()
        self._watch_host()

    def _processes(self, o: Outcome) -> None:
        processes = o.processes or ()
        self._model.processes = tuple(p for p in processes if not p.role.startswith("scheduler"))
        shares = {p.pid: p.cpu_share for p in processes}
        for slot in self._model.slots.values():
            if slot.pid in shares:
                slot.cpu_share = shares[slot.pid]

    # --- ranks ------------------------------------------------------------------------------------------

    def _drive(self, label: str, link: Link, now: int) -> None:
        got = link.poll(now / 1e9)
        while link.events:
            self._note(link.events.pop(0))
        if isinstance(got, Failure):
            slot = self._model.add(label, link.rank.pid, got.status, got.message)
            if got.status == "agentless":
                slot.outside = unknown_rank(label, link.rank.pid, "agentless", got.message, slot.cpu_share)
                self._watch.scrape(link.rank, got.message)
            if link.attempts == 1 or got.kind not in ("starting", "traced"):
                self._note(f"{label}: {got.message}")
        elif got is not None:
            self._model.hello(label, got.hello, now)
            self._kernels.hello(label, got.hello)
            self._model.server = from_hello(self._model.server, got.hello)
            self._watch.attached(link.rank)
            self._note(f"{label}: attached through {got.way} (pid {link.rank.pid})")
            self._watch_host()
            self._tap(label, got.hello, now)
        if link.connection is not None:
            self._receive(label, link, now)

    def _receive(self, label: str, link: Link, now: int) -> None:
        assert link.connection is not None
        try:
            for frame in link.connection.receive():
                self._tap(label, frame, now)
                self._frame(label, frame, now)
        except (ConnectionLost, wire.WireError) as e:
            slot = self._model.slots[label]
            bye = slot.state.bye if slot.state is not None else None
            text = f"the agent left: {bye}" if bye else str(e)
            slot.status, slot.message = "lost", text
            link.lost(now / 1e9)
            self._kernels.lost(label)
            self._note(f"{label}: {text}")
            self._orders.lost(label, text)

    def _tap(self, label: str, frame: wire.Frame, now: int) -> None:
        for tap in self.taps:
            tap(label, frame, now)

    def _frame(self, label: str, frame: wire.Frame, now: int) -> None:
        kind = frame["k"]
        if kind in ("ev", "kernels"):
            self._kernels.frame(label, frame)
        if kind in ("ev", "stat", "bye", "switch"):
            self._model.frame(label, frame, now)
            if kind == "stat":
                off = frame.get("off")
                for hook, why in off.items() if isinstance(off, Mapping) else ():
                    self._note(f"{label}: hook {hook} switched itself off: {why}")
        elif kind == "reply":
            self._orders.answered(label, frame)
        elif kind == "note":
            self._note(f"{label}: {frame.get('text', '')}")

    def _attach(self) -> Attach:
        if self._ended:
            return Attach(None, "waiting", self._ended)
        ways = [k.connection.way for k in self._links.values() if k.connection is not None]
        return as_a_whole(self._model, ways, self._watch.problem, self._clock())

    # --- itself -----------------------------------------------------------------------------------------

    def _measure_self(self, now: int) -> None:
        if now >= self._next_cpu:
            self._next_cpu = now + 1_000_000_000
            self._cpu.append((now, time.process_time_ns()))
            (t0, c0), (t1, c1) = self._cpu[0], self._cpu[-1]
            if t1 > t0:
                self._model.client_cpu = (c1 - c0) / (t1 - t0)
