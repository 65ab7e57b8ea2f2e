"""What the hello says about a scheduler: ranks, model, graphs, arguments, queue figures."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

from . import versions
from .versions import first

ARGS = (
    "attention_backend",
    "chunked_prefill_size",
    "cuda_graph_backend_decode",
    "cuda_graph_backend_prefill",
    "cuda_graph_bs",
    "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs_prefill",
    "disable_cuda_graph",
    "disable_cuda_graph_padding",
    "disable_decode_cuda_graph",
    "disable_overlap_schedule",
    "disable_piecewise_cuda_graph",
    "disable_prefill_cuda_graph",
    "disable_radix_cache",
    "disaggregation_mode",
    "dp_size",
    "enable_dp_attention",
    "enable_hierarchical_cache",
    "enable_lora",
    "enable_metrics",
    "enable_mixed_chunk",
    "enable_piecewise_cuda_graph",
    "enable_priority_scheduling",
    "ep_size",
    "gc_threshold",
    "grammar_backend",
    "kv_cache_dtype",
    "load_balance_method",
    "max_prefill_tokens",
    "max_queued_requests",
    "max_running_requests",
    "max_total_tokens",
    "mem_fraction_static",
    "nnodes",
    "node_rank",
    "num_continuous_decode_steps",
    "numa_node",
    "page_size",
    "piecewise_cuda_graph_max_tokens",
    "pp_size",
    "prefill_decode_interval",
    "prefill_max_requests",
    "quantization",
    "schedule_conservativeness",
    "schedule_policy",
    "sleep_on_idle",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "stream_interval",
    "tp_size",
)
"""Arguments that findings speak of; those that this version has travel under the names that it uses."""

MAX_SCAN = 256
"""Waiting requests that are looked at for the oldest one."""


def _simple(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_simple(v) for v in value[:64]]
    return str(value)[:200]


def arguments(scheduler: Any) -> dict[str, Any]:
    """Name → value of the server's arguments in ``ARGS``, plus what the scheduler made of them."""
    args = getattr(scheduler, "server_args", None)
    out: dict[str, Any] = {}
    for name in ARGS:
        try:
            if hasattr(args, name):
                out[name] = _simple(getattr(args, name))
        except Exception:
            continue
    for name in ("max_total_num_tokens", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens"):
        value = first(scheduler, name)
        if isinstance(value, int):
            out[f"effective_{name}"] = value
    return out


def ranks(scheduler: Any) -> dict[str, int | None]:
    """Own ranks and sizes of the parallel groups; None where this version does not say."""
    sources = [getattr(scheduler, "ps", None), scheduler]
    context = getattr(versions.module("sglang.srt.runtime_context"), "get_parallel", None)
    if callable(context):
        try:
            sources.insert(0, context())
        except Exception:
            pass
    args = getattr(scheduler, "server_args", None)

    def find(*names: str) -> int | None:
        for source in [*sources, args]:
            value = first(source, *names)
            if isinstance(value, int):
                return value
        return None

    return {
        "tp": find("tp_rank"),
        "pp": find("pp_rank"),
        "dp": find("dp_rank"),
        "ep": find("moe_ep_rank"),
        "tp_size": find("tp_size"),
        "pp_size": find("pp_size"),
        "dp_size": find("dp_size"),
        "ep_size": find("moe_ep_size", "ep_size"),
    }


def gpu_index(scheduler: Any) -> int:
    """Index of the device in the scheduler's process, -1 without a GPU."""
    if versions.device(scheduler) != "cuda":
        return -1
    value = first(versions.target_runner(scheduler), "gpu_id")
    if not isinstance(value, int):
        value = first(getattr(scheduler, "ps", None), "gpu_id", default=first(scheduler, "gpu_id", default=-1))
    return value if isinstance(value, int) else -1


def graphs(scheduler: Any) -> dict[str, int | bool | None]:
    """Which forwards can replay a graph, and the largest decode batch that was captured."""
    runner = versions.target_runner(scheduler)
    if runner is None:
        return {"decode_max_bs": None, "decode": None, "prefill": None, "verify": None, "draft": None}
    decode = versions.decode_graph_runner(runner)
    speculative = versions.speculative(scheduler)
    largest = first(decode, "max_bs")
    return {
        "decode_max_bs": largest if isinstance(largest, int) else None,
        "decode": decode is not None,
        "prefill": versions.prefill_graph_runner(runner) is not None,
        "verify": decode is not None if speculative else None,
        "draft": bool(versions.draft_graph_runners(scheduler)) if speculative else None,
    }


def hello(scheduler: Any, loop: str, main_tid: int, modes: dict[str, int]) -> dict[str, Any]:
    """The fields of ``wire.HELLO_AGENT`` that describe the scheduler."""
    args = getattr(scheduler, "server_args", None)
    mono = time.monotonic_ns()
    return {
        "pid": os.getpid(),
        "tid": main_tid,
        "rank": ranks(scheduler),
        "python": platform.python_version(),
        "sglang": versions.sglang_version(),
        "model": str(first(args, "served_model_name", "model_path", default="")),
        "device": versions.device(scheduler),
        "gpu": gpu_index(scheduler),
        "loop": loop,
        "modes": modes,
        "graph": graphs(scheduler),
        "args": arguments(scheduler),
        "clock": {"mono_ns": mono, "real_ns": time.time_ns()},
    }


# --- queues ------------------------------------------------------------------------------------------

QUEUE_WIDTH = 15


def _length(obj: Any, *path: str) -> int:
    for name in path:
        obj = getattr(obj, name, None)
        if obj is None:
            return -1
    try:
        return len(obj)
    except TypeError:
        return -1


def _unfinished(batch: Any) -> int:
    """Requests of a batch that still have tokens to make; -1 where there is no such batch.

    Those that have finished leave it when the next decode is prepared: with prefills alone (one token out each) they
    pile up there. Measured on an H200: 66 "running" of which none ran. Where the first has not finished, none is
    looked at.
    """
    n = _length(batch, "reqs")
    if n <= 0 or getattr(batch.reqs[0], "finished_reason", None) is None:
        return n
    return n - sum(getattr(r, "finished_reason", None) is not None for r in batch.reqs[:MAX_SCAN])


def _oldest_ns(queue: Any, now: int) -> int:
    """Age of the oldest of up to MAX_SCAN requests, spread evenly over the queue, its head among them."""
    n = len(queue)
    if n == 0:
        return 0
    oldest = 0.0
    for request in queue[:: -(-n // MAX_SCAN)]:
        entered = first(getattr(request, "time_stats", None), "wait_queue_entry_time", default=0.0)
        if entered and (not oldest or entered < oldest):
            oldest = entered
    return max(0, now - int(oldest * 1e9)) if oldest else -1


def _pool(scheduler: Any) -> Callable[[], tuple[int, int, int]]:
    """Reader of the KV pool: tokens used, evictable, in all."""
    stats = first(getattr(scheduler, "pool_stats_observer", None), "get_pool_stats")
    stats = stats if stats is not None else first(scheduler, "get_pool_stats")
    if stats is not None:

        def from_stats() -> tuple[int, int, int]:
            s = stats()
            used, evictable = int(s.full_num_used), int(s.full_evictable_size)
            return used, evictable, used + evictable + int(s.full_available_size)

        return from_stats

    allocator, tree = scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
    total = int(first(scheduler, "full_tokens_per_layer", "max_total_num_tokens"))
    available = first(allocator, "full_available_size", "available_size")
    evictable_size = first(tree, "full_evictable_size", "evictable_size")

    def from_parts() -> tuple[int, int, int]:
        evictable = int(evictable_size())
        return total - int(available()) - evictable, evictable, total

    return from_parts


def queue_reader(scheduler: Any, retracted: list[int]) -> Callable[[int], tuple[int, ...]]:
    """A reader of one row of the table ``queue`` at time ``now``; main thread. ``retracted[0]`` counts retractions."""
    pool = _pool(scheduler)
    has_pause = hasattr(scheduler, "_engine_paused")

    def read(now: int) -> tuple[int, ...]:
        used, evictable, total = pool()
        waiting = scheduler.waiting_queue
        return (
            now,
            scheduler.forward_ct,
            _unfinished(getattr(scheduler, "running_batch", None)),
            len(waiting),
            _length(scheduler, "grammar_manager", "grammar_queue"),
            _oldest_ns(waiting, now),
            used,
            evictable,
            total,
            retracted[0],
            int(scheduler._engine_paused) if has_pause else -1,
            _length(scheduler, "disagg_prefill_bootstrap_queue", "queue"),
            _length(scheduler, "disagg_prefill_inflight_queue"),
            _length(scheduler, "disagg_decode_prealloc_queue", "queue"),
            _length(scheduler, "disagg_decode_transfer_queue", "queue"),
        )

    return read
