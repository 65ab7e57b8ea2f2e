"""Ranks of a group in this process: schedulers that are told when to turn, each with the agent's real switches."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sgtop_agent.ops import Call, Ops
from sgtop_agent.switches.control import SwitchControl


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
