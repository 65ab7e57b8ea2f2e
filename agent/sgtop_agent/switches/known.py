"""What this server can switch: looked up on the living scheduler, by what exists, never by a version number.

| | 0.5.9 to .12 | 0.5.14 to .18 | 0.5.20 and later |
|---|---|---|---|
| graph test | ``can_run`` | ``can_run_graph`` | ``can_run_graph`` |
| force miss | absent in .9, .10 | schedule_policy, schedule_batch | .22+: mem_cache.common |
| prefix cache | ``RadixCache`` | ``RadixCache`` | ``UnifiedRadixCache`` |

All of them read force miss through ``envs.SGLANG_RADIX_FORCE_MISS.get()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import versions
from ..versions import first

DECODE, PREFILL, RADIX = 1, 2, 4
BITS: dict[str, int] = {"cuda-graph-decode": DECODE, "cuda-graph-prefill": PREFILL, "radix-cache": RADIX}
"""Name of a switch → its bit in a state."""
LOOPS = ("event_loop_normal", "event_loop_overlap")
"""Event loops in which one turn is: broadcast from the leader, one boundary, at most one batch."""
CACHES = ("RadixCache", "UnifiedRadixCache")
"""Prefix caches with which force miss was tested."""


@dataclass(frozen=True)
class Graphs:
    """Where the graph tests are. ``watched``: (holder, attribute, runner), to see that a runner was replaced."""

    decode: tuple[tuple[Any, str], ...]
    prefill: tuple[tuple[Any, str], ...]
    no_decode: str
    no_prefill: str
    watched: tuple[tuple[Any, str, Any], ...]


def no_group(scheduler: Any, loop: str) -> str:
    """Why nothing can be switched on this server; empty: it can."""
    args = getattr(scheduler, "server_args", None)
    if loop not in LOOPS:
        return f"the event loop {loop} is not tested"
    for name, words in (("pp_size", "pipeline parallelism"), ("nnodes", "ranks on other hosts")):
        size = first(args, name)
        if isinstance(size, int) and size > 1:
            return f"{words} ({name} = {size}): ranks could not agree on a step"
    if first(args, "enable_dp_attention") or first(scheduler, "require_mlp_sync"):
        return "DP attention: the ranks vote on graphs in functions that cannot be switched for one server"
    size = first(args, "attn_cp_size", "context_parallel_size")
    if isinstance(size, int) and size > 1:
        return "context parallelism is not tested"
    if first(scheduler, "recv_skipper") or first(getattr(scheduler, "request_receiver", None), "recv_skipper"):
        return "--scheduler-recv-interval: turns without a broadcast, so that a rank could run ahead"
    points = versions.loop_points(scheduler, loop)
    if points.boundary is None or points.idle is None:
        return "this version's event loop has no step boundary that sgtop knows"
    if not isinstance(first(scheduler, "forward_ct"), int):
        return "this version counts no steps"
    return ""


def group(scheduler: Any, ranks: dict[str, int | None]) -> tuple[int, int]:
    """(own rank, ranks) of the tensor-parallel group: the ranks that must change together."""
    size, own = ranks.get("tp_size") or 1, ranks.get("tp") or 0
    return own, size


def _test(runner: Any) -> str | None:
    return next((name for name in ("can_run_graph", "can_run") if callable(getattr(runner, name, None))), None)


def _attribute(holder: Any, *names: str) -> str:
    return next((n for n in names if getattr(holder, n, None) is not None), names[0])


def _unknown_runners(scheduler: Any, known: list[Any]) -> Iterator[str]:
    for worker in versions.draft_workers(scheduler):
        for name, value in list(vars(worker).items()):
            if "graph_runner" not in name or value is None or isinstance(value, (bool, int, str)):
                continue
            for runner in value if isinstance(value, (list, tuple)) else (value,):
                if runner is None or type(runner).__name__ == "EagerRunner" or callable(runner):
                    continue
                if all(runner is not k for k in known):
                    yield f"{type(worker).__name__}.{name}"


def graphs(scheduler: Any) -> Graphs:
    """Every graph runner of target, verify and draft, or why a switch cannot have them all."""
    runner = versions.target_runner(scheduler)
    decode, prefill = versions.decode_graph_runner(runner), versions.prefill_graph_runner(runner)
    no_decode = "" if decode is not None else "no decode graph was captured"
    no_prefill = "" if prefill is not None else "no prefill graph was captured"
    decodes, prefills = [decode], [prefill]
    watched = [(runner, _attribute(runner, "decode_cuda_graph_runner", "graph_runner"), decode)] if decode else []
    if prefill:
        watched += [(runner, _attribute(runner, "prefill_cuda_graph_runner", "piecewise_cuda_graph_runner"), prefill)]
    if versions.speculative(scheduler):
        drafts = versions.draft_runners(scheduler)
        decodes += [g for g, _ in versions.draft_graph_runners(scheduler)]
        decodes += [versions.decode_graph_runner(d) for d in drafts]
        prefills += [versions.prefill_graph_runner(d) for d in drafts]
        unknown = list(_unknown_runners(scheduler, decodes + prefills))
        if first(getattr(scheduler, "server_args", None), "speculative_adaptive"):
            unknown.append("runners that adaptive speculation exchanges")
        if unknown:
            why = f"the draft has graph runners that sgtop does not know: {', '.join(unknown)}"
            no_decode, no_prefill = no_decode or why, no_prefill or why
    points = []
    for runners, why in ((decodes, no_decode), (prefills, no_prefill)):
        found: list[tuple[Any, str]] = []
        for each in runners:
            if each is None or any(each is f for f, _ in found):
                continue
            test = _test(each)
            if test is None:
                why = why or f"the graph runner {type(each).__name__} has no test that could be switched"
            else:
                found.append((each, test))
        points.append((tuple(found), why))
    return Graphs(points[0][0], points[1][0], points[0][1], points[1][1], tuple(watched))


def force_miss() -> Any:
    """SGLang's flag that makes every prefix match a miss, or None where this version has none."""
    return first(getattr(versions.module("sglang.srt.environ"), "envs", None), "SGLANG_RADIX_FORCE_MISS")


def sessions(scheduler: Any) -> Any:
    """The dict of open sessions, or an empty one."""
    found = first(getattr(scheduler, "session_controller", None), "sessions", default=first(scheduler, "sessions"))
    return found if isinstance(found, dict) else {}


def no_radix(scheduler: Any) -> str:
    """Why the radix cache cannot be switched; empty: it can. Asks for sessions too."""
    flag = force_miss()
    if flag is None or not callable(getattr(flag, "get", None)):
        return "this SGLang has no SGLANG_RADIX_FORCE_MISS (0.5.12 and later have)"
    if not hasattr(flag, "__dict__"):
        return "this SGLang's SGLANG_RADIX_FORCE_MISS cannot be overridden"
    cache = getattr(scheduler, "tree_cache", None)
    name = type(cache).__name__
    if first(getattr(scheduler, "server_args", None), "disable_radix_cache") or "ChunkCache" in name:
        return "the radix cache is disabled"
    if name not in CACHES:
        return f"the cache class {name} is not tested"
    if name == "UnifiedRadixCache":
        parts = {str(getattr(part, "name", part)).upper() for part in getattr(cache, "components", None) or ()}
        if parts != {"FULL"}:
            return f"the cache class {name} is not tested with {', '.join(sorted(parts)) or 'unknown'} components"
    for attribute, words in (
        ("cache_controller", "a hierarchical cache"),
        ("linker", "an external cache"),
        ("enable_session_radix_cache", "sessions in the radix cache"),
    ):
        if getattr(cache, attribute, None):
            return f"the cache class {name} is not tested with {words}"
    if sessions(scheduler):
        return f"sessions are open ({len(sessions(scheduler))}): a forced miss would corrupt their record of KV slots"
    return ""
