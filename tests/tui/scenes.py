"""Scenes: whole snapshots of servers in known states. Pure builders; a ``tick`` shifts what moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from sgtop_core.model.kernel_view import CopyRow, Kernel, KernelGaps, KernelMode, KernelView
from sgtop_core.model.snapshot import (
    GC,
    Alert,
    Attach,
    Cell,
    Cpu,
    Culprit,
    Forward,
    Gpu,
    Histogram,
    Mode,
    Overhead,
    Place,
    Process,
    Quantiles,
    Queue,
    Rank,
    Server,
    Snapshot,
    StepGaps,
)

NOW = 1_790_000_000.0
CELLS = 128

MODE_OF = {
    "D": Cell("DECODE"),
    "e": Cell("DECODE", eager=True),
    "P": Cell("EXTEND"),
    "M": Cell("MIXED"),
    "V": Cell("TARGET_VERIFY"),
    "v": Cell("TARGET_VERIFY", eager=True),
    "X": Cell("DRAFT_EXTEND_V2"),
    ".": Cell("idle"),
    "z": Cell("paused"),
    " ": Cell(None),
    "?": Cell("SOME_NEW_MODE"),
}
"""Letter of a pattern → cell."""


def cells(pattern: str, tick: int = 0, n: int = CELLS) -> tuple[Cell, ...]:
    """``pattern``, repeated to ``n`` cells and shifted by ``tick``."""
    return tuple(MODE_OF[pattern[(i + tick * 3) % len(pattern)]] for i in range(n))


def q(p50: float, p99: float, count: int = 200, top: float | None = None) -> Quantiles:
    """Quantiles of a plausible distribution."""
    return Quantiles(count=count, p50=p50, p99=p99, max=top or p99 * 1.3, total=p50 * count * 1.1)


def wave(base: float, swing: float, tick: int = 0, n: int = 40) -> tuple[float, ...]:
    """A series that wanders around ``base``."""
    return tuple(base + swing * math.sin((i + tick) / 3.0) * (0.5 + 0.5 * math.cos((i + tick) / 7.0)) for i in range(n))


def histogram(counts: Mapping[int, int]) -> Histogram:
    """Counts by bucket of a scale of eight buckets a decade from 1 µs to 10 s."""
    n = 56
    edges = tuple(1e-3 * 10 ** (i / 8) for i in range(n + 1))
    return Histogram(edges_ms=edges, counts=tuple(counts.get(i, 0) for i in range(n)))


def bell(middle: int, size: int, width: int = 6) -> dict[int, int]:
    """A bell of counts around bucket ``middle``."""
    return {middle + i: int(size * math.exp(-(i * i) / width)) for i in range(-7, 8)}


def server(**changes: object) -> Server:
    """Two H200 and an 8B model."""
    base = Server(
        port=30000, model="Qwen/Qwen3-8B", sglang_version="0.5.23", tp=2, dp=1, pp=1, ep=1, pid=4711, device="cuda"
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def decode_mode(step: float, p99: float, bs: float, top: int, graph: float | None, tick: int = 0, **k: object) -> Mode:
    """DECODE figures that fit each other."""
    per_s = min(990.0 / step, 400.0)
    gpu = k.pop("gpu", q(step * 0.78, p99 * 0.6))
    base = Mode(
        steps=int(per_s * 5),
        steps_per_s=per_s,
        tokens_per_s=per_s * bs,
        batch_p50=bs,
        batch_max=top,
        step_ms=q(step, p99, int(per_s * 5)),
        gpu_ms=gpu,  # type: ignore[arg-type]
        graph_share=graph,
        series=wave(step, step * 0.15, tick),
        rate_series=wave(per_s * bs, per_s * bs * 0.1, tick),
    )
    return replace(base, **k)  # type: ignore[arg-type]


def prefill_mode(step: float, p99: float, tokens: float, hit: float, tick: int = 0, **k: object) -> Mode:
    """EXTEND figures that fit each other."""
    per_s = tokens / 2048
    base = Mode(
        steps=int(per_s * 5),
        steps_per_s=per_s,
        tokens_per_s=tokens,
        batch_p50=4,
        batch_max=9,
        step_ms=q(step, p99, int(per_s * 5)),
        gpu_ms=q(step * 0.9, p99 * 0.9),
        graph_share=0.0,
        cached_tokens_per_s=tokens * hit / (1 - hit),
        hit_ratio=hit,
        series=wave(step, step * 0.1, tick),
        rate_series=wave(tokens, tokens * 0.2, tick),
    )
    return replace(base, **k)  # type: ignore[arg-type]


def gaps(p50: float, p99: float, busy: float, causes: Mapping[str, float], label: str = "gpu") -> StepGaps:
    """Gaps of a window of 5 s of which ``1 - busy`` lies between forwards."""
    total = (1 - busy) * 5000
    whole = sum(causes.values()) or 1.0
    middle = round(8 * (math.log10(p50) + 3))
    tail = round(8 * (math.log10(p99) + 3))
    return StepGaps(
        quantiles_ms=Quantiles(count=400, p50=p50, p99=p99, max=p99 * 1.4, total=total),
        label=label,
        causes_ms={name: share / whole * total for name, share in causes.items()},
        histogram=histogram({**bell(middle, 160), **bell(tail, 30, 3)}),
        busy_share=busy,
        by_mode={"DECODE": q(p50, p99, 360), "EXTEND": q(p50 * 2, p99, 40)},
    )


STAGES = {
    "run_batch": 2.9,
    "process_batch_result": 0.62,
    "get_next_batch_to_run": 0.44,
    "recv_requests": 0.31,
    "process_input_requests": 0.12,
    "other": 0.33,
    "idle": 0.28,
}


def rank(label: str, n: int = 0, **changes: object) -> Rank:
    """A healthy rank that decodes."""
    base = Rank(
        rank=label,
        pid=4800 + n,
        state="live",
        message="",
        last_step=184_203,
        last_step_age_s=0.02,
        modes={},
        forwards=(),
        stages_s=STAGES,
        queue=Queue(running=31, waiting=0, grammar=0, oldest_wait_s=None, retracted=0),
        kv_usage=0.41,
        gaps=None,
        gc=GC(count=1, total_ms=2.1, max_ms=2.1, by_generation={0: 1}),
        strip=(),
        graph_max_bs=160,
        cpu_share=0.93,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


PROCESSES = (
    Process("tokenizer", 4711, 0.22, 1_400 << 20, 38),
    Process("detokenizer", 4899, 0.11, 900 << 20, 12),
)
LOG = (
    "12:03:41 attached to TP0, TP1 by pending call (0.6 ms stopped)",
    "12:03:41 graph test found on decode_cuda_graph_runner.can_run_graph",
)


def snapshot(ranks: tuple[Rank, ...], tick: int = 0, **changes: object) -> Snapshot:
    """A live look at two ranks."""
    base = Snapshot(
        time=NOW + tick * 0.25,
        mono_ns=10**12 + tick * 250_000_000,
        window_s=5.0,
        covered_s=5.0,
        server=server(),
        attach=Attach(way="pending-call", state="live"),
        ranks=ranks,
        overhead=Overhead(hook_us_p50=3.1, hook_us_p99=9.4, client_cpu_share=0.031, agent_cpu_share=0.002),
        lost={},
        alerts=(),
        processes=PROCESSES,
        log=LOG,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def cpu(wait_ms: float, preemptions: int, core: int, culprits: tuple[Culprit, ...] = (), **changes: object) -> Cpu:
    """What the kernel did to one scheduler in five seconds, at level A."""
    place = Place(
        host_cpus=tuple(range(64)), allowed_cpus=tuple(range(32)), cpu=core, siblings=(core, core + 32), node=0,
        gpu_node=0, near_cpus=tuple(range(32)), governor="performance", mhz=3690.0, max_mhz=3700.0, threads=112,
    )  # fmt: skip
    base = Cpu(
        level="A", wait_ms=wait_ms, preemptions=preemptions, longest_ms=max((c.ms / max(1, c.count) for c in culprits),
        default=0.05) * 3, culprits=culprits, throttled_ms=0.0, migrations=2, numa_ok=True, place=place,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def gpu(index: int, label: str, busy: float, **changes: object) -> Gpu:
    """An H200 that decodes."""
    base = Gpu(
        index=index, uuid=f"GPU-{index}", name="NVIDIA H200", ranks=(label,), kernel_running=0.99,
        memory_used_bytes=118 << 30, memory_total_bytes=140 << 30, sm_clock_mhz=1980, sm_clock_max_mhz=1980,
        power_w=430.0 + index, power_limit_w=700.0, temperature_c=51 + index, pcie_rx_bytes_per_s=41e6,
        pcie_tx_bytes_per_s=12e6, nvlink_rx_bytes_per_s=21e9, nvlink_tx_bytes_per_s=21e9, sm_busy=busy,
        sm_occupancy=busy * 0.3, tensor_busy=busy * 0.08, dram_busy=busy * 0.62,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


# --- scenes ------------------------------------------------------------------------------------------


def starting(tick: int = 0) -> Snapshot:
    """The server loads its weights."""
    ranks = tuple(
        rank(
            f"TP{i}", i, state="starting", message="loading weights", stages_s={}, gc=None, kv_usage=None,
            last_step=None, last_step_age_s=None, queue=Queue(None, None), graph_max_bs=None,
        )
        for i in range(2)
    )  # fmt: skip
    return snapshot(
        ranks,
        tick,
        server=server(sglang_version=None),
        attach=Attach(
            way=None, state="starting", message="no event-loop frame on the main thread yet (in load_model, 41 s)"
        ),
        overhead=Overhead(None, None, 0.01),
        covered_s=0.0,
        log=(),
    )


def no_traffic(tick: int = 0) -> Snapshot:
    """Attached; nobody asks anything."""
    ranks = tuple(
        rank(
            f"TP{i}", i, last_step=12, last_step_age_s=192.0, stages_s={"idle": 4.9, "recv_requests": 0.1}, gc=None,
            queue=Queue(0, 0, 0, None, 0), kv_usage=0.0, strip=cells(".", tick), cpu_share=1.0,
        )
        for i in range(2)
    )  # fmt: skip
    return snapshot(ranks, tick)


def prefill_bound(tick: int = 0) -> Snapshot:
    """Healthy; long prompts, little decode."""
    pattern = "PPPPPPDPPPPPPPMPPPPDPPPPPPPP"
    ranks = tuple(
        rank(
            f"TP{i}",
            i,
            modes={
                "EXTEND": prefill_mode(92 + i, 118, 41_200, 0.61, tick),
                "DECODE": decode_mode(7.6, 9.9, 12, 14, 1.0, tick, steps=60, steps_per_s=12.0, tokens_per_s=144.0),
                "MIXED": prefill_mode(97, 121, 3_100, 0.2, tick, series=(), rate_series=()),
            },
            strip=cells(pattern, tick),
            gaps=gaps(0.35, 1.9, 0.965, {"run_batch": 40, "process_batch_result": 30, "get_next_batch_to_run": 18}),
            queue=Queue(running=12, waiting=6, grammar=0, oldest_wait_s=0.8, retracted=0),
            kv_usage=0.72,
        )
        for i in range(2)
    )
    return snapshot(ranks, tick)


def decode_bound(tick: int = 0) -> Snapshot:
    """Healthy; steady decode with graphs, a prefill now and then."""
    pattern = "DDDDDDDDDDDDPDDDDDDDDDDDDDDDDDDDDPDDDDDDDD"
    ranks = tuple(
        rank(
            f"TP{i}",
            i,
            modes={
                "DECODE": decode_mode(9.8 + 0.1 * i, 12.4, 31, 34, 1.0, tick),
                "EXTEND": prefill_mode(31, 44, 1_900, 0.34, tick),
            },
            strip=cells(pattern, tick),
            gaps=gaps(
                0.21, 1.1, 0.94, {"run_batch": 44, "process_batch_result": 21, "recv_requests": 9, "gc": 2, "other": 12}
            ),
            cpu=cpu(0.8, 3, 4 + i),
        )
        for i in range(2)
    )
    return snapshot(ranks, tick, gpus=(gpu(0, "TP0", 0.91), gpu(1, "TP1", 0.92)))


EAGER = Alert(
    id="decode-eager",
    severity="critical",
    since=NOW - 41,
    rank=None,
    title="decode runs eager: bs 67 > largest captured 32",
    evidence="0 of 205 decode steps replayed a graph; step p50 24 ms, 9.8 ms before; launches take 16 ms of each step",
    next="restart with --cuda-graph-max-bs-decode 96 (about +0.4 GB)",
)
STOLEN = Alert(
    id="preempted",
    severity="critical",
    since=NOW - 38,
    rank="TP0",
    title="TP0 preempted 231/s by dockerd (pid 812)",
    evidence="412 ms of each second waiting for cpu 4; 187 of 231 preemptions by dockerd, 44 by kworker/4:1",
    next="taskset -cp 6-15 812",
)


def eager_and_stolen(tick: int = 0) -> Snapshot:
    """The sketch: decode lost its graphs while a neighbour steals the CPU."""
    first = (
        "DDDDDDDDPPDDDDDDDDDDDDDDMMDDDDDDD" * 2 + "eeeeeee..eeeeeeeeeeeeeeeePPeeeeeeeeee" + "eeeeeeeeePPeeeeeeeeeeee"
    )
    series = tuple([10.0] * 18 + [11.0, 14.0, 18.0, 22.0] + [24.0 + i % 3 for i in range(18)])
    decode = decode_mode(24.0, 61.0, 67, 96, 0.0, tick, series=series)
    prefill = prefill_mode(38.0, 71.0, 3_200, 0.61, tick)
    queue = Queue(running=67, waiting=4, grammar=0, oldest_wait_s=2.4, retracted=0)
    tp0 = rank(
        "TP0", 0, modes={"DECODE": decode, "EXTEND": prefill}, strip=cells(first, tick),
        gaps=gaps(
            4.1, 14.0, 0.58, {"preempted": 44, "run_batch": 26, "gc": 9, "recv_requests": 3, "other": 18}
        ),
        queue=queue, kv_usage=0.83, graph_max_bs=32, gc=GC(3, 41.0, 18.0, {2: 3}),
        cpu=cpu(
            2060, 1155, 4, (Culprit(812, "dockerd", 935, 1810.0), Culprit(44, "kworker/4:1", 220, 250.0, "kernel"))
        ),
    )  # fmt: skip
    tp1 = rank(
        "TP1", 1, modes={"DECODE": decode, "EXTEND": prefill}, strip=cells(first, tick),
        gaps=gaps(3.9, 13.1, 0.59, {"waiting for TP0": 38, "run_batch": 41, "recv_requests": 3, "other": 18}),
        queue=queue, kv_usage=0.83, graph_max_bs=32, cpu=cpu(15, 10, 5, (Culprit(9, "rcu_sched", 10, 15.0, "kernel"),)),
    )  # fmt: skip
    gpus = (gpu(0, "TP0", 0.52), gpu(1, "TP1", 0.51, throttle_reasons=("power cap",)))
    return snapshot((tp0, tp1), tick, alerts=(EAGER, STOLEN), gpus=gpus)


def straggler(tick: int = 0) -> Snapshot:
    """TP 8; rank 5 is late in every step and the other seven wait for it."""
    pattern = "DDDDDDDDDDDDDDPDDDDDDDDDDDDDDDDDDDDD"
    ranks = []
    for i in range(8):
        slow = i == 5
        ranks.append(
            rank(
                f"TP{i}",
                i,
                modes={
                    "DECODE": decode_mode(31.0 if slow else 30.6, 44.0, 48, 52, 1.0, tick),
                    "EXTEND": prefill_mode(120, 160, 5_400, 0.12, tick),
                },
                strip=cells("DDDDD.DDDDD.DDP" if slow else pattern, tick),
                gaps=gaps(11.8, 26.0, 0.55, {"preempted": 60, "run_batch": 20, "other": 9})
                if slow
                else gaps(0.4, 1.6, 0.95, {"waiting for TP5": 55, "run_batch": 20, "other": 4}),
                queue=Queue(running=48, waiting=11, grammar=0, oldest_wait_s=3.1, retracted=0),
                kv_usage=0.66,
                cpu_share=0.58 if slow else 0.95,
                cpu=cpu(
                    1900,
                    410,
                    40,
                    (Culprit(5120, "gzip", 400, 1880.0),),
                    numa_ok=False,
                    place=Place(cpu=40, node=1, gpu_node=0, threads=120),
                )
                if slow
                else cpu(1.1, 4, i),
            )
        )
    alert = Alert(
        "straggler", "warning", NOW - 95, "TP5", "TP5 makes seven ranks wait: 11.2 ms of each step",
        "gap p50 11.8 ms on TP5, 0.4 ms on the others; 60% of its gaps preempted, cpu 58% of a core",
        "taskset -cp 20-27 4805",
    )  # fmt: skip
    return snapshot(
        tuple(ranks), tick, server=server(tp=8, model="deepseek-ai/DeepSeek-V3.1"), alerts=(alert,),
        gpus=tuple(gpu(i, f"TP{i}", 0.55) for i in range(8)),
    )  # fmt: skip


def kernel(name: str, category: str, count: int, avg: float, total: float, per_step: float) -> Kernel:
    """A kernel of a table that sums to ``total`` ms; ``avg`` in µs."""
    ms = count * avg / 1e3
    return Kernel(
        name, category, count, ms, ms / total, avg, avg * 0.98, avg * 0.8, avg * 2.1, avg * 0.06, per_step, name
    )


def kernel_gaps(mode: str, count: int, p50: float, causes: Mapping[str, float]) -> KernelGaps:
    """Gaps between kernels of a mode; ``p50`` in µs, causes in ms."""
    edges = tuple(1e-4 * 10 ** (k / 4) for k in range(33))
    counts = tuple(int(count * 0.4 ** abs(k - 5)) for k in range(32))
    return KernelGaps(mode, count, sum(causes.values()), p50, p50 * 9, p50 * 900, Histogram(edges, counts), causes)


def tracing() -> KernelView:
    """Kernel tracing of a server that decodes with graphs and prefills eagerly."""
    steps, total = 96, 1_080.0
    decode = tuple(
        kernel(name, category, n * steps, avg, total, n)
        for name, category, n, avg in (
            ("nvjet_tst_64x8_64x16_4x1_v_bz_TNN", "gemm", 129, 46.0),
            ("BatchDecodeWithPagedKVCacheKernel", "attention", 32, 92.4),
            ("FusedAddRMSNormKernel", "norm", 65, 3.1),
            ("act_and_mul_kernel", "activation", 32, 4.2),
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication", 65, 9.8),
            ("memcpy HtoD", "copy", 5, 1.3),
        )
    )
    extend = (
        kernel("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "gemm", 640, 310.0, 260.0, 128),
        kernel("BatchPrefillWithPagedKVCacheKernel", "attention", 160, 280.0, 260.0, 32),
    )
    return KernelView(
        mode="windows",
        state="waiting",
        reason="",
        traced_s=1.0,
        newest_s=None,
        modes=(
            KernelMode("DECODE", steps, 328 * steps, 328.0, 1_012.0, 1.0, decode),
            KernelMode("EXTEND", 5, 900, 180.0, 243.2, 0.0, extend),
        ),
        gaps=(
            kernel_gaps("DECODE", 31_000, 0.9, {"host wait": 14.0, "kernel wait": 29.0, "other": 3.0}),
            kernel_gaps("EXTEND", 880, 2.4, {"host wait": 1.0, "kernel wait": 2.5, "other": 9.0}),
        ),
        copies=(CopyRow("memcpy HtoD", 480, 1_966_080, 0.62, 3.1),),
        busy_share=0.93,
        communication_share=0.061,
        communication_exposed_share=0.058,
        event_busy_share=0.97,
        categories_ms={"gemm": 768.0, "attention": 328.6, "communication": 61.2, "norm": 19.3, "activation": 12.9},
        inflation={"DECODE": 1.013},
        records=32_400,
        ring_bytes=33_591_296,
        cupti=130_001,
    )


def speculative(tick: int = 0) -> Snapshot:
    """EAGLE: verify and draft forwards in each step."""
    forwards = (
        Forward("target", "TARGET_VERIFY", 380, q(11.2, 14.0, 380), q(10.4, 13.1, 380), 1.0, 5_800.0),
        Forward("draft", "DRAFT_EXTEND_V2", 380, q(2.1, 2.9, 380), q(1.6, 2.2, 380), 1.0, None),
        Forward("draft", "DECODE", 1_140, q(1.1, 1.4, 1140), q(0.8, 1.1, 1140), 1.0, None),
        Forward("target", "EXTEND", 9, q(44, 61, 9), q(41, 58, 9), 0.0, 2_100.0),
    )
    one = rank(
        "TP0",
        0,
        modes={
            "DECODE": decode_mode(17.4, 21.0, 24, 26, 1.0, tick, tokens_per_s=57 * 24 * 2.8),
            "EXTEND": prefill_mode(46, 63, 2_100, 0.5, tick),
        },
        forwards=forwards,
        strip=cells("VVVVXVVVVXVVVVXPVVVX", tick),
        gaps=gaps(0.6, 2.2, 0.91, {"run_batch": 52, "process_batch_result": 31, "other": 9}),
        tracing=tracing(),
        cpu=cpu(0.4, 2, 6),
    )
    gpus = (gpu(0, "TP0", 0.88),)
    return snapshot((one,), tick, server=server(tp=1, model="meta-llama/Llama-3.1-8B-Instruct"), gpus=gpus)


def agentless(tick: int = 0) -> Snapshot:
    """No permission to enter the scheduler: /metrics and /proc only."""
    ranks = tuple(
        rank(
            f"TP{i}", i, state="agentless", last_step=None, last_step_age_s=None, stages_s={}, gc=None,
            queue=Queue(running=31, waiting=2), graph_max_bs=None,
        )
        for i in range(2)
    )  # fmt: skip
    return snapshot(
        ranks,
        tick,
        attach=Attach(
            way="agentless",
            state="agentless",
            message="no permission to ptrace pid 4800 (yama ptrace_scope is 1); `sudo sgtop`, or `sgtop doctor`",
        ),
        overhead=Overhead(None, None, 0.012),
        log=("12:03:41 ptrace: operation not permitted, yama 1",),
    )


def no_gpu(tick: int = 0) -> Snapshot:
    """A server on the CPU: host gaps, no graphs, no GPU times."""
    one = rank(
        "TP0",
        0,
        modes={
            "DECODE": decode_mode(6.1, 9.0, 8, 11, None, tick, gpu=None),
            "EXTEND": prefill_mode(22, 31, 4_100, 0.44, tick, gpu_ms=None, graph_share=None),
        },
        strip=cells("DDDDPDDDDDDMDDDDD..DDDPPDD", tick),
        gaps=gaps(0.9, 3.8, 0.81, {"process_batch_result": 34, "get_next_batch_to_run": 22, "no work": 30}, "host"),
        graph_max_bs=None,
        cpu_share=1.0,
    )
    return snapshot((one,), tick, server=server(tp=1, device="cpu", model="/models/tiny-random-llama"))


def lost(tick: int = 0) -> Snapshot:
    """The connection broke a moment ago; sgtop tries again."""
    base = decode_bound(tick)
    ranks = tuple(replace(r, state="lost", message="connection closed 4 s ago") for r in base.ranks)
    return replace(
        base,
        ranks=ranks,
        attach=Attach(
            way="pending-call", state="lost", message="connection closed by the server 4 s ago; next try in 1 s"
        ),
    )


def waiting(tick: int = 0) -> Snapshot:
    """The server is gone; sgtop waits for another one on its port."""
    base = decode_bound(tick)
    ranks = tuple(replace(r, state="lost", message="process 4800 is gone") for r in base.ranks)
    return replace(
        base,
        ranks=ranks,
        attach=Attach(way=None, state="waiting", message="pid 4711 ended 12 s ago; waiting for a server on :30000"),
    )


def hung(tick: int = 0) -> Snapshot:
    """The scheduler stands still in a collective."""
    base = decode_bound(tick)
    words = "main thread not in Python for 40 s, in ncclAllReduce"
    ranks = tuple(
        replace(r, state="hung", message=words, last_step_age_s=40.0, strip=cells("D" * 60 + " " * 68), modes={})
        for r in base.ranks
    )
    alert = Alert(
        "hang", "critical", NOW - 40, None, "no step for 40 s with 31 requests running",
        "TP0 and TP1 both stand in ncclAllReduce since step 184203",
        "py-spy dump --pid 4800 --native",
    )  # fmt: skip
    return replace(
        base,
        ranks=ranks,
        attach=Attach(way="pending-call", state="hung", message=f"TP0: {words}; nothing of sgtop's is in the way"),
        alerts=(alert,),
    )


def healthy_tp8(tick: int = 0) -> Snapshot:
    """TP 8 in good health: for the bench."""
    base = straggler(tick)
    pattern = "DDDDDDDDDDDDDDPDDDDMDDDDDDDDDDDDDDDDD"
    ranks = tuple(
        rank(
            f"TP{i}",
            i,
            modes={
                "DECODE": decode_mode(30.1 + 0.1 * ((i + tick) % 5), 44.0 + tick % 7, 48 + tick % 5, 52, 1.0, tick),
                "EXTEND": prefill_mode(120 + tick % 11, 160, 5_400 + 31 * (tick % 13), 0.12, tick),
            },
            strip=cells(pattern, tick),
            gaps=gaps(
                0.4 + 0.01 * ((tick + i) % 9),
                1.6,
                0.95,
                {"run_batch": 20 + tick % 3, "process_batch_result": 11, "other": 4},
            ),
            queue=Queue(running=48 + tick % 5, waiting=tick % 4, grammar=0, oldest_wait_s=0.1, retracted=0),
            kv_usage=0.66 + 0.001 * (tick % 30),
            cpu_share=0.95 + 0.01 * ((tick + i) % 4),
            last_step=184_203 + tick * 8,
        )
        for i in range(8)
    )
    return replace(base, ranks=ranks, alerts=())


SCENES: dict[str, Callable[[int], Snapshot]] = {
    "starting": starting,
    "no-traffic": no_traffic,
    "prefill-bound": prefill_bound,
    "decode-bound": decode_bound,
    "eager-and-stolen": eager_and_stolen,
    "straggler-tp8": straggler,
    "speculative": speculative,
    "agentless": agentless,
    "no-gpu": no_gpu,
    "lost": lost,
    "waiting": waiting,
    "hung": hung,
}
"""Name → builder; each is shown at every size in test_screens.py."""
