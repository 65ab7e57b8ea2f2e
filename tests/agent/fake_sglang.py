"""A scheduler without SGLang: the method layout of each generation of versions, with nothing behind it.

The layouts are copied from the sources (names, nesting, which objects have slots); the work is replaced by lists of
requests that prefill in chunks, decode and finish. ``install`` puts the modules that the agent looks for into
``sys.modules`` and gives a function that takes them out again.
"""

from __future__ import annotations

import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any

GENERATIONS = ("recv_on_scheduler", "request_receiver", "ingest")
"""0.5.9 to .12, 0.5.14 to .18, 0.5.20 and later"""


class ForwardModeOld(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND = auto()
    DRAFT_EXTEND_V2 = auto()
    PREBUILT = auto()
    SPLIT_PREFILL = auto()
    DLLM_EXTEND = auto()


class ForwardModeNew(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND_V2 = auto()
    PREBUILT = auto()
    SPLIT_PREFILL = auto()
    DLLM_EXTEND = auto()


@dataclass
class TimeStats:
    wait_queue_entry_time: float = 0.0


@dataclass
class Req:
    prompt: int
    new_tokens: int
    cached: int = 0
    done_prompt: int = 0
    made: int = 0
    time_stats: TimeStats = field(default_factory=TimeStats)

    def finished(self) -> bool:
        return self.made >= self.new_tokens


@dataclass
class PrefillStats:
    log_input_tokens: int
    log_hit_tokens: int


@dataclass
class Batch:
    forward_mode: Any
    reqs: list[Req]
    extend_num_tokens: int | None = None
    prefill_stats: PrefillStats | None = None
    decoding_reqs: list[Req] | None = None
    forward_iter: int | None = None
    split_index: int = 0

    def copy(self) -> Batch:
        return Batch(
            self.forward_mode,
            self.reqs[:],
            self.extend_num_tokens,
            self.prefill_stats,
            self.decoding_reqs,
            self.forward_iter,
        )


class NoIter(Batch):
    """0.5.9 and .10: the copy does not carry ``forward_iter``."""

    def copy(self) -> Batch:
        return NoIter(self.forward_mode, self.reqs[:], self.extend_num_tokens, self.prefill_stats, self.decoding_reqs)


@dataclass
class ForwardBatch:
    forward_mode: Any
    batch_size: int
    extend_num_tokens: int | None
    input_ids: Any = None
    spec_info: Any = None


@dataclass
class RunnerOutput:
    can_run_graph: bool


@dataclass
class Result:
    can_run_cuda_graph: bool
    delay_sample_func: Any = None


@dataclass(frozen=True)
class Plan:
    batch_to_run: Batch | None


@dataclass
class PoolStats:
    full_num_used: int
    full_evictable_size: int
    full_available_size: int


class EagerRunner:
    def load_batch(self, batch: Any) -> Any:
        return batch

    def execute(self, batch: Any) -> None:
        self.load_batch(batch)


class GraphBackend:
    def __init__(self) -> None:
        self.launched: Callable[[], None] = lambda: None

    def replay(self, key: int, batch: Any) -> None:
        self.launched()


class GraphRunner:
    """0.5.14 and later."""

    def __init__(self, max_bs: int) -> None:
        self.max_bs = max_bs
        self.backend = GraphBackend()

    def can_run_graph(self, batch: Any) -> bool:
        return int(batch.batch_size) <= self.max_bs

    def execute(self, batch: Any) -> None:
        self.backend.replay(batch.batch_size, batch)


class OldGraphRunner:
    """0.5.9 to .12."""

    def __init__(self, max_bs: int) -> None:
        self.max_bs = max_bs

    def can_run(self, batch: Any) -> bool:
        return int(batch.batch_size) <= self.max_bs

    def replay_prepare(self, batch: Any) -> None:
        return None

    def replay(self, batch: Any) -> None:
        self.replay_prepare(batch)


class ModelRunner:
    def __init__(self, generation: str, modes: Any, graph_max_bs: int) -> None:
        for i in range(60):
            setattr(self, f"unused_{i}", None)
        self.modes = modes
        self.gpu_id = 0
        if generation == "recv_on_scheduler":
            self.graph_runner = OldGraphRunner(graph_max_bs) if graph_max_bs else None
        else:
            self.eager_runner = EagerRunner()
            self.decode_cuda_graph_runner = GraphRunner(graph_max_bs) if graph_max_bs else self.eager_runner
            self.prefill_cuda_graph_runner = self.eager_runner

    def forward(self, batch: ForwardBatch) -> RunnerOutput:
        decode = batch.forward_mode == self.modes.DECODE
        old = getattr(self, "graph_runner", None)
        if old is not None and decode and old.can_run(batch):
            old.replay(batch)
            return RunnerOutput(True)
        new = getattr(self, "decode_cuda_graph_runner", None)
        if isinstance(new, GraphRunner) and decode and new.can_run_graph(batch):
            new.execute(batch)
            return RunnerOutput(True)
        if hasattr(self, "eager_runner"):
            self.eager_runner.execute(batch)
        return RunnerOutput(False)


class Worker:
    def __init__(self, runner: ModelRunner) -> None:
        self.model_runner = runner


@dataclass
class ServerArgs:
    served_model_name: str = "tiny"
    device: str = "cpu"
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    chunked_prefill_size: int = 64
    disable_radix_cache: bool = False
    enable_mixed_chunk: bool = False
    schedule_policy: str = "fcfs"


class SpecNone:
    def is_none(self) -> bool:
        return True


class Receiver:
    """The request receiver of 0.5.14 and later: frozen, with slots, so that no attribute can be set on it."""

    __slots__ = ("_scheduler",)

    def __init__(self, scheduler: Any) -> None:
        object.__setattr__(self, "_scheduler", scheduler)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def recv_requests(self) -> list[Req]:
        return self._scheduler.take_inbox()  # type: ignore[attr-defined, no-any-return]


class Checker:
    """The invariant checker: slots, not frozen."""

    __slots__ = ("checked",)

    def __init__(self) -> None:
        self.checked = 0

    def self_check_during_busy(self) -> None:
        self.checked += 1

    def _check_all_pools(self, stats: Any) -> None:
        self.checked += 1

    def _check_tree_cache(self) -> None:
        self.checked += 1


class Scheduler:
    """One generation's scheduler. ``submit`` gives it work; ``event_loop_*`` runs until ``gracefully_exit``."""

    def __init__(
        self,
        generation: str = "ingest",
        *,
        chunk: int = 64,
        mixed: bool = False,
        graph_max_bs: int = 0,
        step_work: Callable[[], None] = lambda: None,
        idle_sleep: float = 0.0005,
        device: str = "cpu",
    ) -> None:
        for i in range(120):  # SGLang's has as many: CPython keeps such an instance in another way than a small one
            setattr(self, f"unused_{i}", None)
        modes = ForwardModeOld if generation == "recv_on_scheduler" else ForwardModeNew
        self.generation, self.modes, self.chunk, self.mixed = generation, modes, chunk, mixed
        self.step_work, self.idle_sleep = step_work, idle_sleep
        self.server_args = ServerArgs(device=device, chunked_prefill_size=chunk, enable_mixed_chunk=mixed)
        self.device = device
        self.forward_ct = 0
        self.waiting_queue: list[Req] = []
        self.running: list[Req] = []
        self.running_batch = Batch(modes.DECODE, self.running)
        self.chunked: Req | None = None
        self.last_batch: Batch | None = None
        self.result_queue: deque[tuple[Batch, Result]] = deque()
        self._engine_paused = False
        self.gracefully_exit = False
        self.enable_overlap = True
        self.spec_algorithm = SpecNone()
        self.tp_worker = Worker(ModelRunner(generation, modes, graph_max_bs))
        self.draft_worker = None
        self.inbox: deque[Any] = deque()
        self.counters = {"compute": 0, "cache": 0, "decode": 0}
        self.turns = 0
        self.tp_rank = self.pp_rank = self.moe_ep_rank = 0
        self.tp_size = self.pp_size = 1
        self.dp_rank = None
        self.max_total_num_tokens = 1000
        if generation != "recv_on_scheduler":
            self.request_receiver = Receiver(self)
            self.invariant_checker = Checker()
            self.pool_stats_observer = self
        else:
            self.token_to_kv_pool_allocator = self
            self.tree_cache = self

    # --- what the agent reads --------------------------------------------------------------------

    def get_pool_stats(self) -> PoolStats:
        return PoolStats(10, 20, 970)

    def available_size(self) -> int:
        return 970

    def evictable_size(self) -> int:
        return 20

    # --- requests --------------------------------------------------------------------------------

    def submit(self, *reqs: Any) -> None:
        """Thread-safe: requests, or functions to run in ``process_input_requests``."""
        self.inbox.extend(reqs)

    def take_inbox(self) -> list[Any]:
        got = []
        while self.inbox:
            got.append(self.inbox.popleft())
        return got

    def process_input_requests(self, reqs: list[Any]) -> None:
        for req in reqs:
            if callable(req):
                req()
            else:
                self._add_request_to_queue(req)

    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        req.time_stats.wait_queue_entry_time = time.perf_counter()
        self.waiting_queue.append(req)

    def _receive(self) -> None:
        self.turns += 1
        if self.generation == "ingest":
            self.ingest_requests()
        elif self.generation == "request_receiver":
            self.process_input_requests(self.request_receiver.recv_requests())
        else:
            self.process_input_requests(self.recv_requests())  # type: ignore[attr-defined]

    def ingest_requests(self) -> list[Any]:
        reqs = self.request_receiver.recv_requests()
        self.process_input_requests(reqs)
        return reqs

    # --- scheduling ------------------------------------------------------------------------------

    def get_next_batch_to_run(self, **kwargs: Any) -> Any:
        batch = self._next()
        return batch if self.generation == "recv_on_scheduler" else Plan(batch)

    def _next(self) -> Batch | None:
        self.running[:] = [r for r in self.running if not r.finished()]
        tokens = hit = 0
        taken: list[Req] = []
        if self.chunked is not None:
            req = self.chunked
            tokens = min(self.chunk, req.prompt - req.done_prompt)
            req.done_prompt += tokens
            taken.append(req)
            if req.done_prompt == req.prompt:
                self.chunked = None
        while self.waiting_queue and self.chunked is None and tokens < self.chunk:
            req = self.waiting_queue.pop(0)
            hit += req.cached
            req.done_prompt = req.cached
            part = min(self.chunk - tokens, req.prompt - req.cached)
            req.done_prompt += part
            tokens += part
            taken.append(req)
            if req.done_prompt < req.prompt:
                self.chunked = req
        kind: Any = NoIter if self.generation == "recv_on_scheduler" else Batch
        if taken:
            stats = PrefillStats(tokens, hit)
            batch: Batch = kind(self.modes.EXTEND, taken, tokens, stats)
            if self.mixed and self.running:
                batch.forward_mode = self.modes.MIXED
                batch.decoding_reqs = list(self.running)
                batch.reqs = taken + batch.decoding_reqs
                batch.extend_num_tokens = tokens + len(batch.decoding_reqs)
            return batch
        if self.running:
            # the extend fields of a batch that has begun to decode are stale
            return kind(self.modes.DECODE, list(self.running), 12345, PrefillStats(99999, 99999))  # type: ignore[no-any-return]
        return None

    # --- a step ----------------------------------------------------------------------------------

    def run_batch(self, batch: Batch, pp_proxy_tensors: Any = None) -> Result:
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct
        self.step_work()
        decode = batch.forward_mode == self.modes.DECODE
        fb = ForwardBatch(batch.forward_mode, len(batch.reqs), None if decode else batch.extend_num_tokens)
        out = self.tp_worker.model_runner.forward(fb)
        return Result(out.can_run_graph)

    def process_batch_result(self, batch: Batch, result: Result) -> None:
        if batch.forward_mode == self.modes.DECODE:
            self.counters["decode"] += len(batch.reqs)
        elif batch.prefill_stats is not None:
            self.counters["compute"] += batch.prefill_stats.log_input_tokens
            self.counters["cache"] += batch.prefill_stats.log_hit_tokens
        for req in batch.reqs:
            if req.done_prompt == req.prompt:
                req.made += 1
                if not req.finished() and req not in self.running and req is not self.chunked:
                    self.running.append(req)
        self.running_batch.reqs = self.running

    def launch_batch_sample_if_needed(self, result: Any, batch: Any = None) -> None:
        if result is not None and result.delay_sample_func is not None:
            result.delay_sample_func()

    def on_idle(self) -> None:
        if self.generation != "recv_on_scheduler":
            self.invariant_checker._check_all_pools(None)
            self.invariant_checker._check_tree_cache()
        if self.idle_sleep:
            time.sleep(self.idle_sleep)

    # --- loops -----------------------------------------------------------------------------------

    def _batch(self) -> Batch | None:
        plan = self.get_next_batch_to_run(running_batch=self.running_batch, last_batch=self.last_batch)
        return plan.batch_to_run if isinstance(plan, Plan) else plan

    def event_loop_normal(self) -> None:
        while not self.gracefully_exit:
            self._receive()
            if self._engine_paused:
                continue
            batch = self._batch()
            if batch:
                result = self.run_batch(batch)
                self.process_batch_result(batch, result)
            else:
                self.on_idle()
            self.last_batch = batch

    def event_loop_overlap(self) -> None:
        while not self.gracefully_exit:
            self._receive()
            if self._engine_paused:
                continue
            batch = self._batch()
            result = None
            if batch:
                result = self.run_batch(batch)
                self.result_queue.append((batch.copy(), result))
            if self.last_batch:
                done, done_result = self.result_queue.popleft()
                self.process_batch_result(done, done_result)
            elif batch is None:
                self.on_idle()
            self.launch_batch_sample_if_needed(result, batch)
            self.last_batch = batch


class _OldScheduler(Scheduler):
    """0.5.9 to .12: ``recv_requests`` on the scheduler itself."""

    def recv_requests(self) -> list[Any]:
        return self.take_inbox()


_OldScheduler.__name__ = "Scheduler"


def make(generation: str, **kwargs: Any) -> Scheduler:
    """A scheduler of a generation."""
    return (_OldScheduler if generation == "recv_on_scheduler" else Scheduler)(generation, **kwargs)


def install(modes: Any) -> Callable[[], None]:
    """Fake modules in ``sys.modules``; returns what takes them out again."""
    before = {}
    batches, infos = "sglang.srt.managers.schedule_batch", "sglang.srt.model_executor.forward_batch_info"
    for name in ("sglang", "sglang.version", batches, infos):
        before[name] = sys.modules.get(name)
        sys.modules[name] = types.ModuleType(name)
    sys.modules["sglang.version"].__version__ = "0.5.99"  # type: ignore[attr-defined]
    sys.modules[infos].ForwardMode = modes  # type: ignore[attr-defined]
    sys.modules[batches].ScheduleBatch = NoIter if modes is ForwardModeOld else Batch  # type: ignore[attr-defined]

    def undo() -> None:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module

    return undo


@contextmanager
def running(scheduler: Scheduler, loop: str = "event_loop_overlap") -> Iterator[Scheduler]:
    """The scheduler with its loop on a thread."""
    undo = install(scheduler.modes)
    thread = threading.Thread(target=getattr(scheduler, loop), name="fake-scheduler", daemon=True)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.gracefully_exit = True
        thread.join(10)
        undo()
    assert not thread.is_alive()


def wait_for(condition: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Poll until true."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.002)
    raise AssertionError("timed out")
