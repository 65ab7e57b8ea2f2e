"""A scheduler's event loop and its GPU as a small discrete simulation that writes the wire's tables.

The loop overlaps like SGLang's: while the GPU runs step k, the host prepares and launches step k+1 and handles the
result of step k-1. So a GPU that is slower than the host leaves no gaps, and a host that is slower leaves the gaps
that a real one would, with the stages in them that cost the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sgtop_agent.wire import STAGES, TABLES, Frame, events

MODES: Mapping[str, int] = {
    "EXTEND": 1,
    "DECODE": 2,
    "MIXED": 3,
    "IDLE": 4,
    "TARGET_VERIFY": 5,
    "DRAFT_EXTEND": 6,
    "PREBUILT": 7,
    "SPLIT_PREFILL": 8,
    "DLLM_EXTEND": 9,
}
_STAGE = {name: i for i, name in enumerate(STAGES)}
FLUSH_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Queue figures after a step; -1 not known."""

    running: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    kv_used: int = 0
    kv_evictable: int = 0
    kv_total: int = 400_000
    grammar: int = 0
    retracted: int = 0
    paused: int = 0
    pd: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Idle:
    """A turn of the loop that finds nothing to do (or a paused engine) for ``ms``."""

    ms: float
    load: Load = Load()
    stage: str = "idle"


@dataclass(frozen=True, slots=True)
class Step:
    """What one turn of the loop does. Times in µs, of the host unless they say GPU."""

    mode: str
    bs: int
    tokens: int
    gpu_us: float
    launch_us: float = 250.0
    """``run_batch`` without waiting."""
    cached: int = 0
    decode_tokens: int = 0
    graph: int = 1
    sampling_us: float = 40.0
    """On the GPU, after the forward."""
    stages_us: Mapping[str, float] = field(default_factory=dict)
    """Overrides and additions to the usual stage times."""
    gc: tuple[int, float] | None = None
    """(generation, ms) of a collection while the batch is prepared."""
    draft: tuple[tuple[str, float], ...] = ()
    """Forwards of a draft model before the target's: (mode, GPU µs)."""
    forward_mode: str | None = None
    """Mode of the target's forward where it is not the batch's (TARGET_VERIFY)."""
    accepted: int = -1
    finished: int = 0
    load: Load = Load()


Behaviour = Callable[[int, int, float, random.Random], "Step | Idle"]
"""(rank, number of the turn, seconds since the start, random) → what happens next."""

_USUAL = {
    "recv_requests": 25.0,
    "process_input_requests": 10.0,
    "get_next_batch_to_run": 60.0,
    "process_batch_result": 90.0,
    "other": 8.0,
}


class SimRank:
    """One scheduler process. ``run(until)`` simulates; ``frames(now)`` gives what an agent would have sent by then."""

    def __init__(
        self,
        rank: int,
        behaviour: Behaviour,
        hello: Frame,
        start: int,
        seed: int = 0,
        leader: SimRank | None = None,
    ) -> None:
        """``leader``: the rank whose broadcast this one gets its requests from. It must be simulated first, as far."""
        self.hello = hello
        self._leader = leader
        self._received: dict[int, int] = {}
        """Number of a step → when ``recv_requests`` of its turn began."""
        self._rank = rank
        self._behave = behaviour
        self._gpu = hello["device"] != "cpu"
        self._rng = random.Random(1000 * seed + rank)
        self._start = self._t = self._gpu_free = start
        self._pending: tuple[int, int, Step] | None = None
        self._turn = 0
        self.ct = 0
        self._rows: dict[str, list[tuple[int, tuple[int, ...]]]] = {t: [] for t in TABLES}
        self._next_stat = start
        self._next_queue = start
        self._agent_cpu = 0
        self._steps = 0

    def _put(self, table: str, known: int, *row: int) -> None:
        self._rows[table].append((known, row))

    def _stage(self, name: str, ns: int) -> None:
        if ns > 0:
            self._put("stage", self._t + ns, _STAGE[name], self._t, self._t + ns)
            self._t += ns

    def run(self, until: int) -> None:
        """Simulate up to about ``until`` (ns)."""
        while self._t < until:
            what = self._behave(self._rank, self._turn, (self._t - self._start) / 1e9, self._rng)
            self._turn += 1
            if isinstance(what, Idle):
                self._result()
                left = int(what.ms * 1e6)
                while left > 0:  # the agent reports a long stretch piece by piece
                    self._stage(what.stage, min(left, FLUSH_NS))
                    self._queue(what.load)
                    left -= FLUSH_NS
            else:
                self._step(what)
                self._queue(what.load)

    def _jitter(self, us: float) -> int:
        return int(us * 1000 * self._rng.uniform(0.9, 1.15))

    def _step(self, s: Step) -> None:
        stage = {**_USUAL, **s.stages_us}
        for name in ("recv_requests", "process_input_requests", "process_queue", "get_next_batch_to_run"):
            ns = self._jitter(stage.get(name, 0.0))
            if name == "recv_requests":
                ns = max(ns, self._broadcast(self.ct + 1) + ns // 2 - self._t)
            if name == "get_next_batch_to_run" and s.gc is not None:
                gen, ms = s.gc
                a = self._t + ns // 2
                self._put("gc", a + int(ms * 1e6), gen, a, a + int(ms * 1e6), 1, 20_000)
                ns += int(ms * 1e6)
            self._stage(name, ns)
        self.ct += 1
        self._steps += 1
        mode, t0 = MODES[s.mode], self._t
        launch = self._jitter(s.launch_us)
        forwards = [*((1, m, us) for m, us in s.draft), (0, s.forward_mode or s.mode, s.gpu_us)]
        each = launch // (len(forwards) + 1)
        at = t0 + each
        gpu_end = t0
        for runner, name, us in forwards:
            gpu_ns = self._jitter(us)
            tokens = s.tokens if runner == 0 and s.tokens >= 0 else s.bs
            if self._gpu:
                g0 = max(at + each // 2, self._gpu_free + 4_000)
                g1 = g0 + gpu_ns
                g2 = g1 + self._jitter(s.sampling_us if runner == 0 else 0.0)
                self._gpu_free = gpu_end = g2
                end = at + each - 1000
                row = (self.ct, runner, MODES[name], at, end, g0, g1, g2, s.bs, tokens, s.graph)
                self._put("forward", max(end, g2), *row)
                at += each
            else:
                end = at + gpu_ns
                self._put("forward", end, self.ct, runner, MODES[name], at, end, -1, -1, -1, s.bs, tokens, s.graph)
                at = gpu_end = end + each // 2
        self._stage("run_batch", max(launch, 0 if self._gpu else at - t0))
        hook = int(self._rng.gauss(3200, 300)) + (9000 if self._rng.random() < 0.01 else 0)
        step = (self.ct, mode, t0, self._t, s.bs, s.tokens, s.decode_tokens, s.cached, s.graph, hook)
        self._put("step", self._t, *step)
        self._result(stage)
        self._pending = (self.ct, gpu_end, s)
        if self._rng.random() < 0.02:
            self._stage("other", self._jitter(stage["other"] * 4))
        else:
            self._stage("other", self._jitter(stage["other"]))

    def _broadcast(self, ct: int) -> int:
        """When the first rank begins to receive the requests of a step; it has no later step where it has not."""
        self._received[ct] = self._t
        self._received.pop(ct - 4096, None)
        return self._t if self._leader is None else self._leader._received.get(ct, self._leader._t)

    def _result(self, stage: Mapping[str, float] = _USUAL) -> None:
        if self._pending is None:
            return
        ct, gpu_end, s = self._pending
        self._pending = None
        wait = max(gpu_end - self._t, 0)
        self._stage("process_batch_result", wait + self._jitter(stage["process_batch_result"]))
        self._put("result", self._t, ct, self._t, s.accepted, s.finished)

    def _queue(self, q: Load) -> None:
        if self._t < self._next_queue:
            return
        self._next_queue = self._t + FLUSH_NS
        pd = [q.pd.get(k, -1) for k in ("bootstrap", "inflight", "prealloc", "transfer")]
        self._put(
            "queue", self._t, self._t, self.ct, q.running, q.waiting, q.grammar, int(q.oldest_s * 1e9),
            q.kv_used, q.kv_evictable, q.kv_total, q.retracted, q.paused, *pd,
        )  # fmt: skip

    def frames(self, now: int) -> list[Frame]:
        """Frames with every row that is known at ``now`` and was not given before; a ``stat`` four times a second."""
        out: list[Frame] = []
        for table, rows in self._rows.items():
            n = next((i for i, (known, _) in enumerate(rows) if known > now), len(rows))
            if n:
                columns = zip(*(row for _, row in rows[:n]), strict=True)
                out.append(events(table, dict(zip(TABLES[table], columns, strict=True))))
                del rows[:n]
        if now >= self._next_stat:
            self._next_stat = now + 250_000_000
            self._agent_cpu += 700_000
            out.append(
                {
                    "k": "stat", "t": now, "ct": self.ct, "hook_n": self._steps, "hook_p50_ns": 3200,
                    "hook_p99_ns": 5100, "hook_max_ns": 14_000, "agent_cpu_ns": self._agent_cpu,
                    "lost": dict.fromkeys(TABLES, 0), "off": {},
                }
            )  # fmt: skip
            self._steps = 0
        return out


def hello(
    rank: int,
    *,
    tp: int = 1,
    dp: int = 1,
    device: str = "cuda",
    graph_max_bs: int | None = 160,
    model: str = "Qwen/Qwen3-8B",
    sglang: str = "0.5.23",
    args: Mapping[str, object] | None = None,
    now: int = 0,
    pid: int = 40_000,
    speculative: bool = False,
) -> Frame:
    """The hello of a simulated agent."""
    cuda = device == "cuda"
    caps = ["step", "stage", "gc", "queue", "forward", "graph", "nvtx", *(["gpu-events"] if cuda else [])]
    graphs = cuda and graph_max_bs is not None
    return {
        "k": "hello", "proto": 1, "agent": "0.1.0", "way": "pending-call", "token": "", "pid": pid + rank,
        "tid": pid + rank,
        "rank": {"tp": rank % tp, "pp": 0, "dp": rank // tp, "ep": 0, "tp_size": tp, "pp_size": 1, "dp_size": dp,
                 "ep_size": 1},
        "python": "3.12.11", "sglang": sglang, "model": model, "device": device, "gpu": rank if cuda else -1,
        "loop": "event_loop_overlap", "caps": caps, "modes": dict(MODES), "stages": list(STAGES),
        "graph": {"decode_max_bs": graph_max_bs if graphs else None, "decode": graphs, "prefill": False,
                  "verify": graphs and speculative, "draft": graphs and speculative},
        "args": {"cuda_graph_max_bs": graph_max_bs, "disable_radix_cache": False, "schedule_policy": "fcfs",
                 "chunked_prefill_size": 8192, "max_running_requests": 512, "tp_size": tp, "dp_size": dp,
                 **(args or {})},
        "clock": {"mono_ns": now, "real_ns": now + 1_790_000_000_000_000_000},
    }  # fmt: skip
