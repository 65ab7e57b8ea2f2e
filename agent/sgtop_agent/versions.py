"""What differs between SGLang's versions. The one place that knows; everywhere else it is the same.

Nothing here asks for a version number: each difference is found by looking at what exists. Read against the
sources of 0.5.9, .10, .12.post1, .14, .16, .18, .20, .22 and .23, and run against 0.5.12.post1, .16, .20, .23.

| | 0.5.9, .10, .12 | .14, .16, .18 | .20, .22, .23 |
|---|---|---|---|
| receive | ``recv_requests`` | ``request_receiver`` (slots, frozen) | the same, inside ``ingest_requests`` |
| idle | ``self_check_during_idle``; .12 ``on_idle`` | ``on_idle`` | ``on_idle`` |
| runners | ``graph_runner``, ``replay`` | ``*_cuda_graph_runner``, ``execute`` | the same |
| ranks | attributes of the scheduler | ``scheduler.ps`` | .22+: the process-wide parallel context |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ReadBatch = Callable[[Any], tuple[int, int, int, int, int]]
ReadForward = Callable[[Any], tuple[int, int, int]]


def first(obj: Any, *names: str, default: Any = None) -> Any:
    """The first attribute of ``names`` that ``obj`` has and that is not None. Properties may raise: then the next."""
    for name in names:
        try:
            value = getattr(obj, name, None)
        except Exception:
            continue
        if value is not None:
            return value
    return default


def module(name: str) -> Any:
    """A module that SGLang has imported, or None. Nothing is imported here."""
    return sys.modules.get(name)


def is_scheduler(obj: Any) -> bool:
    """Whether ``obj`` is SGLang's scheduler (or a subclass), by name: the class itself need not be importable."""
    return any(c.__name__ == "Scheduler" for c in type(obj).__mro__)


def sglang_version() -> str:
    """SGLang's version, or an empty string."""
    for name in ("sglang.version", "sglang"):
        version = getattr(module(name), "__version__", None)
        if isinstance(version, str):
            return version
    return ""


# --- the event loop ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """Where the hooks of the event loop go: paths below the scheduler, only such as exist."""

    turn: str | None
    boundary: str | None
    idle: str | None
    stages: tuple[tuple[str, str], ...]
    """(stage of ``wire.STAGES``, path)"""
    sample: str | None
    tight: bool
    """receive, process and get_next follow each other at once: the next one's mark ends the one before"""


def _exists(scheduler: Any, path: str) -> bool:
    obj = scheduler
    for name in path.split("."):
        obj = getattr(obj, name, None)
        if obj is None:
            return False
    return callable(obj)


def loop_points(scheduler: Any, loop: str) -> Loop:
    """The hook points for the running event loop (``event_loop_overlap``, ``event_loop_pp``, …)."""

    def pick(*paths: str) -> str | None:
        return next((p for p in paths if _exists(scheduler, p)), None)

    stages = [("process_input_requests", "process_input_requests")]
    if "pdmux" in loop:
        boundary = pick("update_running_batch")
        stages.append(("get_next_batch_to_run", "update_split_prefill_batch"))
    elif "disagg_prefill" in loop:
        boundary = pick("get_next_disagg_prefill_batch_to_run")
    elif "disagg_decode" in loop:
        boundary = pick("get_next_disagg_decode_batch_to_run")
    else:
        boundary = pick("get_next_batch_to_run")
    if "disagg" in loop:
        stages += [
            ("process_queue", "disagg_prefill_bootstrap_queue.pop_bootstrapped"),
            ("process_queue", "resolve_waiting_queue_bootstrap"),
            ("process_queue", "process_disagg_prefill_inflight_queue"),
            ("process_queue", "process_decode_queue"),
        ]
    for name in ("self_check_during_busy", "_check_all_pools", "check_memory", "_check_tree_cache", "check_tree_cache"):
        path = pick(f"invariant_checker.{name}", name)
        if path is not None:
            stages.append(("sanity_check_cache", path))
    return Loop(
        turn=pick("request_receiver.recv_requests", "recv_requests"),
        boundary=boundary,
        idle=pick("on_idle", "self_check_during_idle", "maybe_sleep_on_idle"),
        stages=tuple((stage, path) for stage, path in stages if _exists(scheduler, path)),
        sample=pick("launch_batch_sample_if_needed"),
        tight=loop in ("event_loop_normal", "event_loop_overlap"),
    )


class _NeverPaused:
    _engine_paused = False


def pause_flags(scheduler: Any) -> Any:
    """An object whose ``_engine_paused`` says whether the engine is paused: read once a turn."""
    return scheduler if hasattr(scheduler, "_engine_paused") else _NeverPaused


def copies_carry_iter(batch_class: Any = None) -> bool:
    """Whether the copy of a batch that ``process_batch_result`` gets under overlap knows its ``forward_iter``."""
    if batch_class is None:
        batch_class = getattr(module("sglang.srt.managers.schedule_batch"), "ScheduleBatch", None)
    code = getattr(getattr(batch_class, "copy", None), "__code__", None)
    return code is not None and "forward_iter" in code.co_names


# --- modes and batches -------------------------------------------------------------------------------


def modes() -> dict[str, int]:
    """Name → number of every ForwardMode member of this version."""
    enum = getattr(module("sglang.srt.model_executor.forward_batch_info"), "ForwardMode", None)
    return {name: int(member) for name, member in enum.__members__.items()} if enum is not None else {}


def read_batch(names: dict[str, int]) -> ReadBatch:
    """A reader of a ScheduleBatch before it runs. It reads only what the batch's mode owns.

    ``extend_num_tokens`` of a batch that decodes is stale. Tokens and cached tokens are those of SGLang's own
    counters: ``log_hit_tokens`` counts a prompt's cached prefix once, where its first chunk is scheduled.
    """
    decode, mixed, idle = names.get("DECODE", -1), names.get("MIXED", -1), names.get("IDLE", -1)
    verify, prebuilt, split = names.get("TARGET_VERIFY", -1), names.get("PREBUILT", -1), names.get("SPLIT_PREFILL", -1)

    def read(batch: Any) -> tuple[int, int, int, int, int]:
        mode = batch.forward_mode
        bs = len(batch.reqs)
        if mode in (decode, verify):
            return mode, bs, bs, bs, 0
        if mode in (idle, prebuilt):
            return mode, bs, 0, 0, 0
        tokens = batch.extend_num_tokens or 0
        decoding = 0
        cached = 0
        stats = getattr(batch, "prefill_stats", None)
        if stats is not None:
            cached = stats.log_hit_tokens
        elif hasattr(batch, "prefill_stats"):
            decoding = bs  # decode work in the shape of an extend (DP attention); SGLang counts no prefill for it
        if mode == mixed:
            running = batch.decoding_reqs
            decoding = len(running) if running else 0
        elif mode == split and batch.split_index:
            return mode, bs, 0, 0, 0  # a later slice of layers for the same tokens
        return mode, bs, tokens, decoding, cached

    return read


def read_forward(names: dict[str, int]) -> ReadForward:
    """A reader of a ForwardBatch at the entry of a forward (the eager runner turns MIXED into EXTEND later)."""
    decode, idle = names.get("DECODE", -1), names.get("IDLE", -1)
    extends = {names[n] for n in ("EXTEND", "MIXED", "DLLM_EXTEND", "SPLIT_PREFILL") if n in names}

    def read(batch: Any) -> tuple[int, int, int]:
        mode = batch.forward_mode
        bs = batch.batch_size
        if mode in extends:
            return mode, bs, batch.extend_num_tokens or 0
        if mode == idle:
            return mode, bs, 0
        ids = batch.input_ids
        if mode == decode and batch.spec_info is None:
            return mode, bs, bs
        return mode, bs, bs if ids is None else ids.shape[0]

    return read


def speculative(scheduler: Any) -> bool:
    """Whether the server decodes speculatively."""
    algorithm = getattr(scheduler, "spec_algorithm", None)
    none = getattr(algorithm, "is_none", None)
    return bool(algorithm is not None and callable(none) and not none())


def accepted(scheduler: Any, names: dict[str, int]) -> Callable[[Any, Any], int] | None:
    """A reader of the tokens that a processed decode batch made, as SGLang counts them; None: not speculative."""
    if not speculative(scheduler):
        return None
    decode = names.get("DECODE", -1)

    def read(batch: Any, result: Any) -> int:
        if batch.forward_mode != decode:
            return -1
        bs = len(batch.reqs)
        count = getattr(result, "get_num_generated_tokens", None)
        if count is not None:
            return int(count(bs))
        drafts = first(result, "num_correct_drafts", "num_accepted_tokens")
        return -1 if drafts is None else bs + int(drafts)

    return read


# --- runners -----------------------------------------------------------------------------------------


def target_runner(scheduler: Any) -> Any:
    """The target's ModelRunner, or None."""
    return first(getattr(scheduler, "tp_worker", None), "model_runner", "_model_runner")


def draft_workers(scheduler: Any) -> Iterator[Any]:
    """The draft's workers, each once."""
    seen: set[int] = set()
    todo = [getattr(scheduler, "draft_worker", None)]
    while todo:
        worker = todo.pop()
        if worker is None or id(worker) in seen or len(seen) > 8:
            continue
        seen.add(id(worker))
        yield worker
        todo += [first(worker, "_draft_worker"), first(worker, "draft_worker"), first(worker, "mtp_worker")]


def draft_runners(scheduler: Any) -> list[Any]:
    """The draft's ModelRunners, each once."""
    target = target_runner(scheduler)
    found: list[Any] = []
    for worker in draft_workers(scheduler):
        several = first(worker, "draft_runner_list", "draft_runners", "model_runner_list", default=())
        for runner in [*several, first(worker, "draft_runner"), first(worker, "model_runner")]:
            if runner is None or runner is target or not callable(getattr(runner, "forward", None)):
                continue
            if all(runner is not known for known in found):
                found.append(runner)
    return found


def draft_graph_runners(scheduler: Any) -> list[tuple[Any, str]]:
    """(graph runner, name of the method that replays) of the draft: these bypass ``ModelRunner.forward``."""
    found: list[tuple[Any, str]] = []
    for worker in draft_workers(scheduler):
        several = first(worker, "cuda_graph_runner_for_draft_extend_list", default=())
        for runner in [
            *several,
            first(worker, "cuda_graph_runner"),
            first(worker, "cuda_graph_runner_for_draft_extend"),
        ]:
            if runner is None or any(runner is known for known, _ in found):
                continue
            method = next((m for m in ("execute", "replay") if callable(getattr(runner, m, None))), None)
            if method is not None:
                found.append((runner, method))
    return found


def _is_graph(runner: Any) -> bool:
    return runner is not None and type(runner).__name__ != "EagerRunner"


def decode_graph_runner(runner: Any) -> Any:
    """The decode graph runner of a ModelRunner, or None when it decodes eager."""
    graph = first(runner, "decode_cuda_graph_runner", "graph_runner")
    return graph if _is_graph(graph) else None


def prefill_graph_runner(runner: Any) -> Any:
    """The prefill (piecewise) graph runner of a ModelRunner, or None."""
    graph = first(runner, "prefill_cuda_graph_runner", "piecewise_cuda_graph_runner")
    return graph if _is_graph(graph) else None


def late_points(runners: list[Any], draft_graphs: list[Any]) -> tuple[list[tuple[Any, str, bool]], bool]:
    """Where the GPU's share of a forward begins: (object, method, at its entry), and whether each path has one.

    Where each path has one, no start event is needed at the entry of ``forward``.
    """
    points: list[tuple[Any, str, bool]] = []
    complete = True
    for runner in runners:
        eager = getattr(runner, "eager_runner", None)
        if callable(getattr(eager, "load_batch", None)):
            points.append((eager, "load_batch", False))
        else:
            complete = False
        for graph in (decode_graph_runner(runner), prefill_graph_runner(runner)):
            points += _late_of(graph)
    for graph in draft_graphs:
        found = _late_of(graph)
        points += found
        complete = complete and bool(found)
    return points, complete


def _late_of(graph: Any) -> list[tuple[Any, str, bool]]:
    if graph is None:
        return []
    backend = getattr(graph, "backend", None)
    prefill = hasattr(graph, "capture_num_tokens")  # the embedding may run before its graph: not at the launch
    if not prefill and callable(getattr(backend, "replay", None)):
        return [(backend, "replay", True)]
    for name in ("load_batch", "replay_prepare"):
        if callable(getattr(graph, name, None)):
            return [(graph, name, False)]
    return []


def cuda(scheduler: Any) -> Any:
    """``torch.cuda`` when the scheduler computes on CUDA, else None."""
    torch = module("torch")
    if torch is None or device(scheduler) != "cuda":
        return None
    return getattr(torch, "cuda", None)


def forward_stream(scheduler: Any, loop: str) -> Any:
    """The stream of the forwards, or None where it is "the current one"."""
    if "pdmux" in loop or not getattr(scheduler, "enable_overlap", False):
        return None
    return getattr(scheduler, "forward_stream", None)


def device(scheduler: Any) -> str:
    """``cuda``, ``cpu``, …"""
    return str(first(scheduler, "device", default=first(getattr(scheduler, "server_args", None), "device", default="")))
