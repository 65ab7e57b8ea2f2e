"""Snapshot and totals as metric families. Label sets are bounded: ranks, modes, stages, causes, GPUs, finding ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from sgtop_core.model.snapshot import Snapshot

from .totals import RankTotals, Totals

MAX_CAUSES = 48
"""Different causes of gaps shown for a rank; what is beyond adds up under ``other``."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class SgtopCollector(Collector):
    """Gives prometheus-client the families at every scrape.

    Args:
        snapshot: the latest snapshot (5 s window), or None before the first.
        totals: counts since attaching.
    """

    def __init__(self, snapshot: Callable[[], Snapshot | None], totals: Totals) -> None:
        self._snapshot = snapshot
        self._totals = totals

    def describe(self) -> list[Any]:
        """Nothing: registering must not need a server yet."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families, now."""
        s = self._snapshot()
        yield from _totals(self._totals.read())
        if s is not None:
            yield from _server(s)
            yield from _ranks(s)
            yield from _gpus(s)


def _totals(ranks: Mapping[str, RankTotals]) -> Iterator[Family]:
    by_mode = ["rank", "mode"]
    steps = CounterMetricFamily(
        "sgtop_steps", "Steps (run_batch) since sgtop attached, by forward mode.", labels=by_mode
    )
    tokens = CounterMetricFamily("sgtop_tokens", "Tokens computed, by forward mode of the step.", labels=by_mode)
    graph = CounterMetricFamily(
        "sgtop_graph_steps", "Steps whose target forward replayed a CUDA graph.", labels=by_mode
    )
    eager = CounterMetricFamily("sgtop_eager_steps", "Steps whose target forward ran eager.", labels=by_mode)
    cached = CounterMetricFamily("sgtop_cached_tokens", "Prompt tokens taken from the prefix cache.", labels=["rank"])
    accepted = CounterMetricFamily(
        "sgtop_accepted_tokens", "Tokens accepted by speculative verification.", labels=["rank"]
    )
    finished = CounterMetricFamily("sgtop_finished_requests", "Requests that finished.", labels=["rank"])
    run = HistogramMetricFamily("sgtop_run_batch_seconds", "Length of run_batch on the main thread.", labels=by_mode)
    gpu = HistogramMetricFamily(
        "sgtop_forward_gpu_seconds", "GPU time of a forward, from CUDA events.", labels=["rank", "runner", "mode"]
    )
    stage = CounterMetricFamily(
        "sgtop_stage_seconds", "Main thread's time by scheduler stage, exclusive.", labels=["rank", "stage"]
    )
    gc_n = CounterMetricFamily("sgtop_gc_collections", "Python garbage collections.", labels=["rank", "generation"])
    gc_s = CounterMetricFamily("sgtop_gc_seconds", "Time in Python garbage collections.", labels=["rank", "generation"])
    for label, r in ranks.items():
        for m in list(r.steps):
            name = r.mode_name(m)
            steps.add_metric([label, name], r.steps[m])
            tokens.add_metric([label, name], r.tokens[m])
            if r.graph[m] or r.eager[m]:  # neither: not known
                graph.add_metric([label, name], r.graph[m])
                eager.add_metric([label, name], r.eager[m])
            run.add_metric([label, name], r.run_batch[m].cumulative(), r.run_batch[m].sum_s)
        for (runner, m), h in list(r.gpu.items()):
            gpu.add_metric([label, ("target", "draft")[runner], r.mode_name(m)], h.cumulative(), h.sum_s)
        for i, seconds in list(r.stage_s.items()):
            stage.add_metric([label, r.stage_name(i)], seconds)
        for g in list(r.gc_n):
            gc_n.add_metric([label, str(g)], r.gc_n[g])
            gc_s.add_metric([label, str(g)], r.gc_s[g])
        cached.add_metric([label], r.cached)
        accepted.add_metric([label], r.accepted)
        if r.finished is not None:
            finished.add_metric([label], r.finished)
    yield from (steps, tokens, graph, eager, cached, accepted, finished, run, gpu, stage, gc_n, gc_s)


class _Gauges:
    """Gauge families by name, made when their first value comes; an unknown value is left out, never 0."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily] = {}

    def put(self, name: str, help_text: str, value: float | int | None, **labels: str) -> None:
        if value is None:
            return
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = GaugeMetricFamily(name, help_text, labels=list(labels))
        family.add_metric(list(labels.values()), float(value))

    def families(self) -> list[GaugeMetricFamily]:
        return list(self._families.values())


def _server(s: Snapshot) -> Iterator[Family]:
    g = _Gauges()
    g.put("sgtop_up", "1 while sgtop watches the server through its agent.", int(s.attach.state == "live"))
    g.put(
        "sgtop_server_info", "What is watched, and how; always 1.", 1,
        model=s.server.model or "", sglang_version=s.server.sglang_version or "",
        way=s.attach.way or "", state=s.attach.state,
    )  # fmt: skip
    g.put("sgtop_window_seconds", "Length of the window of all gauges.", s.covered_s)
    o = s.overhead
    hook = "Main-thread time in sgtop's hooks a step"
    g.put("sgtop_hook_p50_seconds", f"{hook}, median.", _per(o.hook_us_p50, 1e6))
    g.put("sgtop_hook_p99_seconds", f"{hook}, 99th percentile.", _per(o.hook_us_p99, 1e6))
    g.put("sgtop_client_cpu_ratio", "CPU of sgtop itself; 1 is one core.", o.client_cpu_share)
    g.put("sgtop_agent_cpu_ratio", "CPU of the agent's thread, worst rank; 1 is one core.", o.agent_cpu_share)
    for p in s.processes:
        g.put("sgtop_process_cpu_ratio", "CPU of a helper process; 1 is one core.", p.cpu_share, role=p.role)
        g.put("sgtop_process_resident_memory_bytes", "Memory of a helper process.", p.rss_bytes, role=p.role)
    alerts: dict[tuple[str, str, str], int] = {}
    for a in s.alerts:
        key = (a.id, a.severity, a.rank or "")
        alerts[key] = alerts.get(key, 0) or int(a.active)
    for (identity, severity, rank), active in alerts.items():
        g.put("sgtop_alert_active", "1 while a finding holds.", active, id=identity, severity=severity, rank=rank)
    yield from g.families()
    lost = CounterMetricFamily("sgtop_lost_rows", "Rows lost in full rings since attaching.", labels=["table"])
    for table, n in s.lost.items():
        lost.add_metric([table], n)
    yield lost


def _ranks(s: Snapshot) -> Iterator[Family]:
    g = _Gauges()
    for r in s.ranks:
        rank = r.rank
        g.put("sgtop_rank_up", "1 while the rank is watched and lives.", int(r.state == "live"), rank=rank)
        g.put("sgtop_last_step_age_seconds", "Since the latest step.", r.last_step_age_s, rank=rank)
        for mode, m in r.modes.items():
            g.put("sgtop_step_p50_seconds", "Step length, median.", _per(m.step_ms.p50, 1e3), rank=rank, mode=mode)
            g.put("sgtop_step_p99_seconds", "Step length, 99th.", _per(m.step_ms.p99, 1e3), rank=rank, mode=mode)
            g.put("sgtop_batch_p50_requests", "Batch size, median.", m.batch_p50, rank=rank, mode=mode)
            g.put("sgtop_graph_ratio", "Share of steps that replayed a graph.", m.graph_share, rank=rank, mode=mode)
        q = r.queue
        for name, n in (("running", q.running), ("waiting", q.waiting), ("grammar", q.grammar), *q.pd.items()):
            g.put("sgtop_queue_requests", "Requests in a queue of the scheduler.", n, rank=rank, queue=name)
        g.put("sgtop_oldest_waiting_seconds", "Age of the oldest waiting request.", q.oldest_wait_s, rank=rank)
        g.put("sgtop_kv_usage_ratio", "KV pool held by running requests.", r.kv_usage, rank=rank)
        g.put("sgtop_scheduler_cpu_ratio", "CPU of the scheduler; 1 is one core.", r.cpu_share, rank=rank)
        if r.gaps is not None and s.covered_s > 0:
            gaps = r.gaps
            g.put("sgtop_forward_busy_ratio", "Share of time inside forwards (union).", gaps.busy_share, rank=rank)
            g.put("sgtop_gap_p50_seconds", "Gap between forwards, median.", _per(gaps.quantiles_ms.p50, 1e3), rank=rank)
            g.put("sgtop_gap_p99_seconds", "Gap between forwards, 99th.", _per(gaps.quantiles_ms.p99, 1e3), rank=rank)
            for cause, ms in _bounded(gaps.causes_ms).items():
                help_text = "Share of time in gaps between forwards, by cause."
                g.put("sgtop_gap_ratio", help_text, ms / 1e3 / s.covered_s, rank=rank, cause=cause)
        c = r.cpu
        seen_s = s.covered_s if c is None or c.seen_s is None else c.seen_s
        if c is not None and seen_s > 0:
            waited = "Share of time the main thread waited for a CPU."
            g.put("sgtop_cpu_wait_ratio", waited, _per(c.wait_ms, 1e3 * seen_s), rank=rank)
            g.put("sgtop_cpu_throttled_ratio", "Share of time throttled by the cgroup.",
                  _per(c.throttled_ms, 1e3 * seen_s), rank=rank)  # fmt: skip
            g.put("sgtop_cpu_preemption_rate_hertz", "Preemptions of the main thread a second.",
                  _per(c.preemptions, seen_s), rank=rank)  # fmt: skip
    yield from g.families()


def _gpus(s: Snapshot) -> Iterator[Family]:
    g = _Gauges()
    for gpu in s.gpus:
        i = str(gpu.index)
        running = "Share of time in which a kernel was running (nvidia-smi's utilisation)."
        g.put("sgtop_gpu_kernel_running_ratio", running, gpu.kernel_running, gpu=i)
        g.put("sgtop_gpu_sm_busy_ratio", "SMs with work (GPM).", gpu.sm_busy, gpu=i)
        g.put("sgtop_gpu_sm_occupancy_ratio", "Warps resident on the SMs (GPM).", gpu.sm_occupancy, gpu=i)
        g.put("sgtop_gpu_tensor_busy_ratio", "Tensor cores busy (GPM).", gpu.tensor_busy, gpu=i)
        g.put("sgtop_gpu_dram_busy_ratio", "DRAM bandwidth used (GPM).", gpu.dram_busy, gpu=i)
        g.put("sgtop_gpu_memory_used_bytes", "Memory in use.", gpu.memory_used_bytes, gpu=i)
        g.put("sgtop_gpu_memory_size_bytes", "Memory in all.", gpu.memory_total_bytes, gpu=i)
        g.put("sgtop_gpu_power_watts", "Power drawn.", gpu.power_w, gpu=i)
        g.put("sgtop_gpu_temperature_celsius", "Temperature.", gpu.temperature_c, gpu=i)
        clock = None if gpu.sm_clock_mhz is None else gpu.sm_clock_mhz * 1e6
        g.put("sgtop_gpu_sm_clock_hertz", "SM clock.", clock, gpu=i)
        for reason in gpu.throttle_reasons:
            g.put("sgtop_gpu_throttled", "1 for each reason that slows the clocks now.", 1, gpu=i, reason=reason)
    yield from g.families()


def _per(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _bounded(causes: Mapping[str, float]) -> dict[str, float]:
    out: dict[str, float] = {}
    for i, (cause, ms) in enumerate(sorted(causes.items(), key=lambda c: -c[1])):
        name = cause if i < MAX_CAUSES else "other"
        out[name] = out.get(name, 0.0) + ms
    return out
