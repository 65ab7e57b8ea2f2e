"""The wire between the agent and sgtop: frames, their msgpack codec, and the one home of the schema.

A frame is a 4-byte little-endian length and that many bytes of msgpack, which hold one map. The map's
``k`` names its kind. Unknown fields are ignored; unknown kinds are counted by the reader. Every time is
``CLOCK_MONOTONIC`` in nanoseconds; ``-1`` in a column stands for "not known" unless a column says otherwise.

Events travel as columns: a column is msgpack ``bin`` of little-endian int64, so that the agent needs no fast
msgpack of its own and the reader can view a column with numpy without a copy. ``docs/wire.md`` is made from
the tables below by ``python -m sgtop_agent.wire``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

PROTOCOL = 1
MAX_FRAME = 16 * 1024 * 1024
"""Bytes. A longer frame is garbage: the reader closes the connection."""
HEARTBEAT_S = 1.0
"""A client sends ``ping`` this often."""
CLIENT_TIMEOUT_S = 5.0
"""A client that is silent, or does not take its frames, for this long is dropped and the hooks undone."""

Value = Union[None, bool, int, float, str, bytes, "list[Value]", "dict[str, Value]"]
Frame = dict[str, Any]

KINDS: dict[str, str] = {
    "hello": "first frame of each side",
    "ev": "agent → sgtop: a columnar batch of one table; fields e (table), n (rows), c (name → bin)",
    "stat": "agent → sgtop, 4 times a second: own cost and loss; fields below",
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
    "counters": "map: the ring header's counters; sgring.c says what each counts",
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
    "flipped), asked (ns)",
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
        "t": "ns; at most 20 rows a second",
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

_U32 = struct.Struct("<I")


class WireError(ValueError):
    """Bytes that are not what the schema says; the text says what."""


# --- msgpack: the subset that frames use, so that the agent needs no package -------------------------


def _pack(v: Any, out: bytearray) -> None:
    if v is None:
        out.append(0xC0)
    elif v is True:
        out.append(0xC3)
    elif v is False:
        out.append(0xC2)
    elif isinstance(v, int):
        if 0 <= v < 128:
            out.append(v)
        elif -32 <= v < 0:
            out.append(v & 0xFF)
        elif -(1 << 63) <= v < (1 << 63):
            out += b"\xd3" + v.to_bytes(8, "big", signed=True)
        elif v < (1 << 64):
            out += b"\xcf" + v.to_bytes(8, "big")
        else:
            raise WireError(f"integer out of range: {v}")
    elif isinstance(v, float):
        out += b"\xcb" + struct.pack(">d", v)
    elif isinstance(v, str):
        b = v.encode("utf-8", "replace")
        n = len(b)
        if n < 32:
            out.append(0xA0 | n)
        else:
            out += b"\xdb" + n.to_bytes(4, "big")
        out += b
    elif isinstance(v, (bytes, bytearray, memoryview)):
        b = bytes(v)
        out += b"\xc6" + len(b).to_bytes(4, "big") + b
    elif isinstance(v, (list, tuple)):
        if len(v) < 16:
            out.append(0x90 | len(v))
        else:
            out += b"\xdd" + len(v).to_bytes(4, "big")
        for x in v:
            _pack(x, out)
    elif isinstance(v, Mapping):
        if len(v) < 16:
            out.append(0x80 | len(v))
        else:
            out += b"\xdf" + len(v).to_bytes(4, "big")
        for k, x in v.items():
            _pack(k, out)
            _pack(x, out)
    else:
        raise WireError(f"cannot pack a {type(v).__name__}")


_MAX_DEPTH = 32


class _Unpacker:
    __slots__ = ("b", "i")

    def __init__(self, b: memoryview) -> None:
        self.b = b
        self.i = 0

    def take(self, n: int) -> memoryview:
        j = self.i + n
        if j > len(self.b):
            raise WireError("truncated")
        r = self.b[self.i : j]
        self.i = j
        return r

    def uint(self, n: int) -> int:
        return int.from_bytes(self.take(n), "big")

    def text(self, n: int) -> str:
        return str(self.take(n), "utf-8", "replace")

    def seq(self, n: int, depth: int) -> list[Any]:
        if n > len(self.b) - self.i:
            raise WireError("truncated")
        return [self.value(depth) for _ in range(n)]

    def map(self, n: int, depth: int) -> dict[str, Any]:
        if 2 * n > len(self.b) - self.i:
            raise WireError("truncated")
        out: dict[str, Any] = {}
        for _ in range(n):
            k = self.value(depth)
            if not isinstance(k, str):
                raise WireError("a map's key must be a string")
            out[k] = self.value(depth)
        return out

    def value(self, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise WireError("nested too deep")
        c = self.uint(1)
        if c < 0x80:
            return c
        if c >= 0xE0:
            return c - 256
        if c < 0x90:
            return self.map(c & 15, depth + 1)
        if c < 0xA0:
            return self.seq(c & 15, depth + 1)
        if c < 0xC0:
            return self.text(c & 31)
        if c == 0xC0:
            return None
        if c in (0xC2, 0xC3):
            return c == 0xC3
        if c in (0xC4, 0xC5, 0xC6):
            return self.take(self.uint(1 << (c - 0xC4)))
        if c == 0xCA:
            return struct.unpack(">f", self.take(4))[0]
        if c == 0xCB:
            return struct.unpack(">d", self.take(8))[0]
        if 0xCC <= c <= 0xCF:
            return self.uint(1 << (c - 0xCC))
        if 0xD0 <= c <= 0xD3:
            n = 1 << (c - 0xD0)
            return int.from_bytes(self.take(n), "big", signed=True)
        if c in (0xD9, 0xDA, 0xDB):
            return self.text(self.uint(1 << (c - 0xD9)))
        if c in (0xDC, 0xDD):
            return self.seq(self.uint(2 if c == 0xDC else 4), depth + 1)
        if c in (0xDE, 0xDF):
            return self.map(self.uint(2 if c == 0xDE else 4), depth + 1)
        raise WireError(f"unknown msgpack byte 0x{c:02x}")


def pack(frame: Mapping[str, Any]) -> bytes:
    """One frame as bytes, its length included.

    Raises:
        WireError: a value that msgpack cannot hold, or a frame longer than MAX_FRAME.
    """
    out = bytearray(4)
    _pack(frame, out)
    n = len(out) - 4
    if n > MAX_FRAME:
        raise WireError(f"frame of {n} bytes")
    _U32.pack_into(out, 0, n)
    return bytes(out)


def unpack(body: bytes | bytearray | memoryview) -> Frame:
    """The map in a frame's body (without the length). ``bin`` values are memoryviews into ``body``.

    Raises:
        WireError: anything but exactly one map with string keys and a string ``k``.
    """
    u = _Unpacker(memoryview(body))
    v = u.value()
    if u.i != len(u.b):
        raise WireError("bytes after the frame")
    if not isinstance(v, dict) or not isinstance(v.get("k"), str):
        raise WireError("a frame must be a map with a kind")
    return v


class FrameReader:
    """Cuts a byte stream into frames. ``feed`` what the socket gave; iterate what is complete.

    ``decode`` makes a frame of a body; sgtop gives a faster one than the agent can have.
    """

    def __init__(self, max_frame: int = MAX_FRAME, decode: Callable[[bytes], Frame] = unpack) -> None:
        self._buf = bytearray()
        self._max = max_frame
        self._decode = decode

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield each complete frame.

        Raises:
            WireError: garbage; the stream is of no use after it.
        """
        self._buf += data
        at = 0
        try:
            while len(self._buf) - at >= 4:
                (n,) = _U32.unpack_from(self._buf, at)
                if n > self._max:
                    raise WireError(f"frame of {n} bytes")
                if len(self._buf) - at < 4 + n:
                    break
                body = bytes(self._buf[at + 4 : at + 4 + n])
                at += 4 + n
                yield self._decode(body)
        finally:
            del self._buf[:at]  # once, not a frame

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buf)


# --- columns ---------------------------------------------------------------------------------------


def column(values: Sequence[int]) -> bytes:
    """A column as little-endian int64."""
    a = values if isinstance(values, array) and values.typecode == "q" else array("q", values)
    if sys.byteorder == "big":
        a = array("q", a)
        a.byteswap()
    return a.tobytes()


def events(table: str, columns: Mapping[str, Sequence[int]]) -> Frame:
    """An ``ev`` frame of ``table``; all columns of the schema, of one length.

    Raises:
        WireError: a table or a column that the schema does not have, or columns of different lengths.
    """
    want = TABLES.get(table)
    if want is None or set(columns) != set(want):
        raise WireError(f"columns of {table}: {sorted(columns)}")
    lengths = {len(c) for c in columns.values()}
    if len(lengths) != 1:
        raise WireError(f"columns of {table} differ in length")
    return {"k": "ev", "e": table, "n": lengths.pop(), "c": {name: column(v) for name, v in columns.items()}}


def check_events(frame: Frame) -> tuple[str, int, dict[str, memoryview]]:
    """(table, rows, column → raw int64 bytes) of an ``ev`` frame; unknown columns are kept.

    Raises:
        WireError: a column that is not rows × 8 bytes.
    """
    table, n, cols = frame.get("e"), frame.get("n"), frame.get("c")
    if not isinstance(table, str) or not isinstance(n, int) or n < 0 or not isinstance(cols, dict):
        raise WireError("an ev frame without e, n or c")
    for name, raw in cols.items():
        if not isinstance(raw, memoryview) or len(raw) != 8 * n:
            raise WireError(f"column {table}.{name} does not hold {n} values")
    return table, n, cols


def _document() -> str:
    def table(rows: Mapping[str, str], head: str) -> list[str]:
        return [f"| {head} | meaning |", "|---|---|", *(f"| `{k}` | {v} |" for k, v in rows.items()), ""]

    doc = (__doc__ or "").strip()
    lines = ["# Wire format", "", f"Protocol {PROTOCOL}. Made from `sgtop_agent/wire.py`; do not edit.", "", doc, ""]
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


if __name__ == "__main__":
    print(_document())
