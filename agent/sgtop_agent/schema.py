"""What travels between the agent and sgtop: kinds of frames, their fields, the tables' columns, and the limits.

The one home of the schema; ``wire`` packs and unpacks it. ``docs/wire.md`` is made from it by
``python -m sgtop_agent.wire``.
"""

from __future__ import annotations

from collections.abc import Mapping

PROTOCOL = 1
MAX_FRAME = 16 * 1024 * 1024
"""Bytes. A longer frame is garbage: the reader closes the connection."""
HEARTBEAT_S = 1.0
"""A client sends ``ping`` this often."""
CLIENT_TIMEOUT_S = 5.0
"""A client that is silent, or does not take its frames, for this long is dropped and the hooks undone."""

KINDS: dict[str, str] = {
    "hello": "first frame of each side",
    "ev": "agent → sgtop: a columnar batch of one table; fields e (table), n (rows), c (name → bin)",
    "stat": "agent → sgtop, every 0.4 s: own cost and loss; fields below",
    "reply": "agent → sgtop: the answer to a cmd; fields id, ok, result or error (in words)",
    "note": "agent → sgtop: a line for the log or the audit; fields t, level (info|warning|error), text",
    "kernels": "agent → sgtop: state of kernel tracing, at each change and once a second; fields below",
    "switch": "agent → sgtop: state of the switches, at each change and, while one is flipped, once a second; below",
    "bye": "agent → sgtop: the last frame; field why (in words)",
    "ping": "sgtop → agent: heartbeat, every second",
    "cmd": "sgtop → agent: fields id, op, args (map)",
}

HELLO_AGENT: dict[str, str] = {
    "proto": "int, protocol number",
    "agent": "str, agent version",
    "way": "plugin | pep768 | pending-call | run",
    "token": "str, the token that sgtop handed over; the reader checks it",
    "pid": "int, pid of the scheduler in its own pid namespace",
    "tid": "int, native id of the scheduler's main thread in its own pid namespace",
    "rank": "map: tp, pp, dp, ep (own ranks), tp_size, pp_size, dp_size, ep_size; null where unknown",
    "python": "str, e.g. 3.11.7",
    "sglang": "str, SGLang's version",
    "model": "str, served model name or path",
    "device": "str, cuda, cpu, …",
    "gpu": "int, index of the device in the scheduler's process, or -1",
    "loop": "str, name of the running event loop, e.g. event_loop_overlap",
    "caps": "list of str: step, stage, gc, queue, forward, gpu-events, graph, nvtx, kernels, switches, …",
    "modes": "map: name of a ForwardMode member → its number in this version",
    "stages": "list of str; the number in a stage row is an index into it",
    "graph": "map: decode_max_bs (largest captured decode batch), decode, prefill, verify, draft: bool|null",
    "args": "map: what findings need of the server's arguments (names of this version → values)",
    "clock": "map: mono_ns, real_ns, read together",
}

STAT: dict[str, str] = {
    "t": "int, time of this frame",
    "ct": "int, forward_ct now",
    "hook_n": "int, steps measured since the last stat",
    "hook_p50_ns": "int, main-thread time spent in sgtop's hooks a step, median",
    "hook_p99_ns": "int, 99th percentile",
    "hook_max_ns": "int, maximum",
    "agent_cpu_ns": "int, CPU time of the agent's thread since it started",
    "lost": "map: table → rows lost since the agent started (ring overflow)",
    "off": "map: hook → why it switched itself off (an exception in it, in words)",
}

KERNELS: dict[str, str] = {
    "t": "int, time of this frame",
    "mode": "off | windows | on: the strongest wish of all clients",
    "state": "off | waiting | enabling | tracing | disabling | settling | yielded | failed",
    "reason": "str, in words: why it does not trace",
    "window_s": "float, length of a window",
    "period_s": "float, from one window to the next",
    "cupti": "int, cuptiGetVersion(), or null",
    "ring_bytes": "int, size of the ring in the server's memory; 0 there is none",
    "epoch": "int, number of the current or last tracing session",
    "on": "list epoch, t of the running session, or null",
    "windows": "list of the latest sessions: epoch, t on, t off, ns of the main thread to enable, to disable",
    "counters": "map: the ring header's counters; agent/native/layout.h says what each counts",
}

SWITCH: dict[str, str] = {
    "t": "int, time of this frame",
    "leader": "bool, whether this rank leads its tensor-parallel group; only its frame knows owners and timers",
    "rank": "int, own rank in the group",
    "size": "int, ranks in the group",
    "armed": "bool, whether the rank follows a page",
    "word": "list: after, before, N: the state at boundaries with forward_ct ≥ N (of step N + 1 and later) and below; "
    "bit 0 cuda-graph-decode is off, bit 1 cuda-graph-prefill, bit 2 radix-cache",
    "settled": "bool, whether every rank has reached N and is in the state after",
    "waits": "str, in words: what a pending flip waits for",
    "switches": "list of maps: name, state (on, off, pending), wanted (on, off), available, reason (why not), "
    "step (the first that runs with its flip), owner, left_s (until it goes back by itself; null: kept, or not "
    "flipped), asked (ns), why (its last flip went back, in words)",
    "slots": "list of maps: rank, armed, state, at (forward_ct where that state began), seen (forward_ct now)",
    "log": "list of [forward_ct, state, ns]: this rank's own changes, oldest first",
    "ct": "int, forward_ct now",
}

STAGES: tuple[str, ...] = (
    "other",
    "recv_requests",
    "process_input_requests",
    "get_next_batch_to_run",
    "process_queue",
    "run_batch",
    "process_batch_result",
    "sanity_check_cache",
    "idle",
    "launch_batch_sample_if_needed",
    "paused",
)
"""Exclusive stages of the scheduler's main thread, under SGLang's names. ``idle``: the loop found no work."""

TABLES: dict[str, dict[str, str]] = {
    "step": {
        "ct": "forward_ct of this run_batch",
        "mode": "ForwardMode number of the batch (hello.modes)",
        "t0": "ns, entry of run_batch",
        "t1": "ns, return of run_batch",
        "bs": "requests in the batch",
        "tokens": "tokens computed: EXTEND and MIXED from the extend lengths (MIXED: plus one a decoding request), "
        "DECODE the batch size; verify: see the result table",
        "decode_tokens": "tokens of decoding requests among them",
        "cached": "prompt tokens taken from the prefix cache by requests that start here; 0 in DECODE",
        "graph": "1 the target forward replayed a CUDA graph, 0 eager, -1 unknown",
        "hook_ns": "ns of the main thread in sgtop's hooks since the step before; -1 not measured (seven of eight)",
    },
    "forward": {
        "ct": "forward_ct of its step",
        "runner": "0 target, 1 draft",
        "mode": "ForwardMode number of the ForwardBatch",
        "t0": "ns, host: entry of the runner's forward (or graph execute)",
        "t1": "ns, host: return of it",
        "gpu0": "ns, GPU: start event, as late as the version allows",
        "gpu1": "ns, GPU: end of the forward",
        "gpu2": "ns, GPU: end of sampling and copies",
        "bs": "batch size of the ForwardBatch",
        "tokens": "input tokens of the ForwardBatch",
        "graph": "1 graph replay, 0 eager, -1 unknown",
    },
    "stage": {
        "stage": "index into hello.stages",
        "t0": "ns; segments are ordered and never overlap: a stage inside another cuts it in two",
        "t1": "ns",
    },
    "gc": {
        "gen": "generation collected",
        "t0": "ns, on the thread that collected",
        "t1": "ns",
        "main": "1 the collection ran on the scheduler's main thread, else 0",
        "collected": "objects freed",
    },
    "result": {
        "ct": "forward_ct of the step whose result was processed",
        "t": "ns, when",
        "accepted": "tokens accepted by speculative verify, all requests; -1 not speculative",
        "finished": "requests that finished; -1 unknown",
    },
    "queue": {
        "t": "ns; at most 10 rows a second",
        "ct": "forward_ct then",
        "running": "requests in the running batch",
        "waiting": "requests in the waiting queue",
        "grammar": "requests waiting for a grammar",
        "oldest_ns": "age of the oldest waiting request",
        "kv_used": "tokens of the KV pool that running requests hold (not evictable)",
        "kv_evictable": "tokens of the radix cache that can be evicted",
        "kv_total": "tokens of the KV pool",
        "retracted": "requests retracted since the agent's hooks went on",
        "paused": "1 while the engine is paused",
        "pd_bootstrap": "PD prefill: requests in the bootstrap queue",
        "pd_inflight": "PD prefill: requests whose KV is being sent",
        "pd_prealloc": "PD decode: requests in the pre-allocation queue",
        "pd_transfer": "PD decode: requests in the transfer queue",
    },
}


def document(about: str) -> str:
    """The text of ``docs/wire.md``; ``about``: its introduction."""

    def table(rows: Mapping[str, str], head: str) -> list[str]:
        return [f"| {head} | meaning |", "|---|---|", *(f"| `{k}` | {v} |" for k, v in rows.items()), ""]

    lines = [
        "# Wire format",
        "",
        f"Protocol {PROTOCOL}. Made from `sgtop_agent/schema.py`; do not edit.",
        "",
        about,
        "",
    ]
    lines += [
        f"Longest frame: {MAX_FRAME} bytes. Heartbeat every {HEARTBEAT_S:g} s; a silent client is dropped "
        f"after {CLIENT_TIMEOUT_S:g} s.",
        "",
    ]
    lines += ["## Kinds", "", *table(KINDS, "kind"), "## Agent's hello", "", *table(HELLO_AGENT, "field")]
    lines += ["## stat", "", *table(STAT, "field")]
    lines += ["## kernels", "", *table(KERNELS, "field")]
    lines += ["## switch", "", *table(SWITCH, "field")]
    for name, cols in TABLES.items():
        lines += [f"## Table `{name}`", "", *table(cols, "column")]
    return "\n".join(lines)
