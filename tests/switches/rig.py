"""Ranks of a group in this process: schedulers that are told when to turn, each with the agent's real switches."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sgtop_agent import wire
from sgtop_agent.ops import Call, Ops
from sgtop_agent.switches.control import SwitchControl
from sgtop_core.switches.control import Switches
from sgtop_probes.http import HttpError


class Graph:
    """A graph runner of 0.5.14 and later."""

    def can_run_graph(self, batch: Any) -> bool:
        return True


class RadixCache:
    """By its name the cache that was tested."""


class Scheduler:
    """What the switches look at, of a rank of a tensor-parallel group."""

    def __init__(self, rank: int, size: int) -> None:
        self.tp_rank, self.tp_size = rank, size
        self.pp_rank = self.dp_rank = None
        self.pp_size = 1
        self.forward_ct = 0
        self.waiting_queue: list[Any] = []
        self.running_batch = SimpleNamespace(reqs=[])
        self.chunked_req = None
        self.server_args = SimpleNamespace(pp_size=1, nnodes=1, enable_dp_attention=False, tp_size=size)
        self.tp_worker = SimpleNamespace(
            model_runner=SimpleNamespace(decode_cuda_graph_runner=Graph(), prefill_cuda_graph_runner=Graph())
        )
        self.tree_cache = RadixCache()
        self.device = "cpu"

    def recv_requests(self) -> list[Any]:
        return []

    def get_next_batch_to_run(self) -> None:
        return None

    def on_idle(self) -> None:
        return None

    def decodes_with_graphs(self) -> bool:
        return bool(self.tp_worker.model_runner.decode_cuda_graph_runner.can_run_graph(None))


class Peer:
    """A client as the agent sees it. ``said``: its frames."""

    def __init__(self, label: str = "client") -> None:
        self.label, self.greeted = label, True
        self.fds: deque[int] = deque()
        self.said: list[dict[str, Any]] = []
        self.handed: list[int] = []

    def send(self, frame: dict[str, Any], fds: Any = ()) -> None:
        self.said.append(frame)
        self.handed += [os.dup(fd) for fd in fds]


class Agent:
    """The part of ``serve.Agent`` that extensions use, without a thread."""

    def __init__(self, scheduler: Any, loop: str = "event_loop_overlap") -> None:
        self.scheduler = scheduler
        self.hooks: Any = SimpleNamespace(
            scheduler=scheduler, found=SimpleNamespace(loop=loop), caps=["boundary"], retracted=0
        )
        self.ops = Ops()
        self.clients: list[Any] = []
        self.notes: list[str] = []
        self.frames: list[dict[str, Any]] = []
        self._posted: deque[Callable[[], None]] = deque()
        self.control = SwitchControl(self)  # type: ignore[arg-type]
        self.control.register()

    def every(self, period_ns: int, fn: Callable[[int], None], wanted: Callable[[], bool] = bool) -> None:
        self._tick = fn

    def on_client_gone(self, fn: Callable[[Any], None]) -> None:
        self._gone = fn

    def add_busy(self, fn: Callable[[], bool]) -> None:
        self.busy = fn

    def on_fork(self, fn: Callable[[], None]) -> None:
        self.fork = fn

    def on_undo(self, fn: Callable[[], None]) -> None:
        self.undo = fn

    def post(self, fn: Callable[[], None]) -> bool:
        self._posted.append(fn)
        return True

    def wake(self) -> None:
        return None

    def emit(self, frame: dict[str, Any], fds: Any = ()) -> None:
        self.frames.append(frame)

    def note(self, level: str, text: str) -> None:
        self.notes.append(text)

    # --- for tests -------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        while self._posted:
            self._posted.popleft()()
        self._tick(now)

    def drop(self, client: Any) -> None:
        """The client's connection has ended."""
        if client in self.clients:
            self.clients.remove(client)
            self._gone(client)

    def call(self, client: Peer, op: str, **args: Any) -> dict[str, Any]:
        """A client's command; its reply."""
        self.ops.run(Call(client, len(client.said), op, args))  # type: ignore[arg-type]
        return client.said[-1]


class Http:
    """Answers GETs."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: HttpError | None = None

    def get(self, path: str) -> bytes:
        self.asked.append(path)
        if self.error is not None:
            raise self.error
        return b"Cache flushed.\n"


class Server:
    """A session over agents in this process: ``dp`` replicas of ``tp`` ranks."""

    def __init__(self, tp: int = 2, dp: int = 1, readonly: bool = False) -> None:
        self.readonly = readonly
        self.asked: list[tuple[str, str]] = []
        self.refuse: dict[tuple[str, str], str] = {}
        self.missing: set[str] = set()
        self.web: Http | None = Http()
        self.agents: dict[str, Agent] = {}
        self.peers: dict[str, Peer] = {}
        self._place: dict[str, dict[str, int]] = {}
        for d in range(dp):
            for t in range(tp):
                label = f"DP{d} TP{t}" if dp > 1 else f"TP{t}"
                self.agents[label], self.peers[label] = Agent(Scheduler(t, tp)), Peer(label)
                self.agents[label].clients.append(self.peers[label])
                self._place[label] = {"dp": d, "tp": t, "tp_size": tp}

    def hellos(self) -> dict[str, Any]:
        return {k: None if k in self.missing else {"k": "hello", "rank": p} for k, p in self._place.items()}

    def http(self) -> Any:
        return self.web

    def ask(
        self, rank: str, op: str, args: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> tuple[Mapping[str, Any], list[int]]:
        self.asked.append((rank, op))
        if (rank, op) in self.refuse:
            return {"ok": False, "error": self.refuse[rank, op]}, []
        peer = self.peers[rank]
        peer.fds.extend(os.dup(fd) for fd in fds)
        reply = self.agents[rank].call(peer, op, **args)
        came, peer.handed = peer.handed, []
        return reply, came

    def turn(self, n: int = 8) -> None:
        for i in range(n):
            for agent in self.agents.values():
                agent.scheduler.get_next_batch_to_run()
                agent.scheduler.forward_ct += 1
                agent.tick(10**12 + i)

    def graphs(self) -> dict[str, bool]:
        return {label: a.scheduler.decodes_with_graphs() for label, a in self.agents.items()}

    def end(self) -> None:
        for label, agent in self.agents.items():
            agent.drop(self.peers[label])
        self.turn()
        for agent in self.agents.values():
            assert not agent.busy()
            agent.undo()
        assert set(self.graphs().values()) == {True}


MODES = {"EXTEND": 1, "DECODE": 2}


class Live:
    """A session of the command line over a ``Server`` whose ranks turn on a thread of their own.

    ``idle``: no batches.
    """

    def __init__(self, server: Server, step_s: float = 0.002) -> None:
        self.server, self.step_s = server, step_s
        self.idle = False
        self.killed = False
        self.unanswered: deque[str] = deque()
        """Operations that find nobody answering, in this order."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.before: Callable[[str], None] = lambda op: None
        """Called before a command is done."""
        self.taps: list[Callable[[str, Any, int], None]] = []
        self.switches = Switches(self)
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for agent in self.server.agents.values():
            for client in list(agent.clients):
                agent.drop(client)
        self.server.turn(16)
        self.server.end()

    def _turn(self) -> None:
        while not self._end.wait(self.step_s):
            with self._lock:
                agents = self.server.agents.values()
                for agent in agents:
                    agent.scheduler.get_next_batch_to_run()
                for label, agent in self.server.agents.items():
                    if self.idle:
                        agent.scheduler.on_idle()
                    else:
                        agent.scheduler.forward_ct += 1
                        self._tell(label, agent.scheduler.forward_ct)
                    agent.tick(time.monotonic_ns())

    def _tell(self, label: str, ct: int) -> None:
        now = time.monotonic_ns()
        row = {"ct": ct, "mode": 2, "t0": now, "t1": now + 1000, "bs": 1, "tokens": 1, "decode_tokens": 1}
        columns = {**row, "cached": 0, "graph": 1, "hook_ns": -1}
        frame = wire.events("step", {name: [value] for name, value in columns.items()})
        for tap in list(self.taps):
            tap(label, {**frame, "c": {k: memoryview(v) for k, v in frame["c"].items()}}, now)

    # --- as the session ---------------------------------------------------------------------------

    @property
    def readonly(self) -> bool:
        return False

    def snapshot(self) -> Any:
        state = "waiting" if self.killed else "live"
        return SimpleNamespace(
            server=SimpleNamespace(pid=None), ranks=(), attach=SimpleNamespace(state=state, message=""), log=()
        )

    def hellos(self) -> dict[str, Any]:
        if self.killed:
            return {}
        return {k: h and {**h, "modes": MODES} for k, h in self.server.hellos().items()}

    def http(self) -> Any:
        return self.server.http()

    def ask(
        self, rank: str, op: str, args: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> tuple[Mapping[str, Any], list[int]]:
        with self._lock:
            if self.unanswered and self.unanswered[0] == op:
                self.unanswered.popleft()
                return {"ok": False, "error": f"{rank} did not answer within 5 s"}, []
            return self.server.ask(rank, op, args, fds)

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append((op, dict(args)))
        self.before(op)
        return self.switches.command(op, args)

    def stop(self) -> None:
        """Detached: what this client owns goes back."""
        with self._lock:
            for label, agent in self.server.agents.items():
                agent.drop(self.server.peers[label])

    # --- somebody else ----------------------------------------------------------------------------

    def elsewhere(self, switch: str, off: bool, who: str = "pid 7 on host", for_s: float = 30.0) -> dict[str, Any]:
        """Another client flips, or takes back; its reply."""
        with self._lock:
            agent = next(iter(self.server.agents.values()))
            peer = next((c for c in agent.clients if c.label == who), None)
            if peer is None:
                peer = Peer(who)
                agent.clients.append(peer)
            if not off:
                return agent.call(peer, "switch.back", switch=switch, who=who)
            agent.call(peer, "switch.open")
            for fd in peer.handed:
                os.close(fd)
            peer.handed = []
            return agent.call(peer, "switch.flip", switch=switch, on=False, who=who, for_s=for_s)

    def state(self, switch: str) -> dict[str, Any]:
        """What an agent says of it now."""
        with self._lock:
            leader = next(iter(self.server.agents.values()))
            row = next(s for s in leader.control.state()["switches"] if s["name"] == switch)
            return dict(row)
