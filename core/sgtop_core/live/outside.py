"""What a server says of itself over HTTP, for ranks without an agent. Two scrapes make rates; gauges need one.

``/metrics`` (with ``--enable-metrics``) gives queues, KV memory, tokens, graph use and, from 0.5.20 on, stages;
without it ``/v1/loads`` gives queues and tokens. Names: SGLang's ``observability/metrics_collector.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sgtop_probes.discovery import RankProcess
from sgtop_probes.http import HttpError, Load, Sample

from sgtop_core.live.backend import Http
from sgtop_core.model.model import unknown_rank
from sgtop_core.model.snapshot import Mode, Quantiles, Queue, Rank

EVERY_S = 2.0
"""A scrape of /metrics costs the server some milliseconds of its main process."""

_NO_STEPS = Quantiles(0, None, None, None)
Metrics = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One look. ``t`` in seconds of any steady clock."""

    t: float
    metrics: Metrics
    loads: Sequence[Load]
    problem: str = ""


class Outside:
    """Scrapes and remembers the look before."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._before: Scrape | None = None
        self._now: Scrape | None = None
        self.info: Mapping[str, Any] = {}

    def look(self, t: float) -> Scrape:
        """Scrape once; never raises, ``problem`` says what went wrong."""
        problem = ""
        metrics: Metrics = {}
        loads: Sequence[Load] = ()
        try:
            if not self.info:
                self.info = self._http.server_info()
        except HttpError as e:
            problem = str(e)
        try:
            metrics = self._http.metrics()
            if not metrics:
                problem = "metrics are off: start the server with --enable-metrics to see more without the agent"
        except HttpError as e:
            problem = str(e)
        if "sglang:num_running_reqs" not in metrics:
            try:
                loads = self._http.loads()
            except HttpError as e:
                problem = problem or str(e)
        self._before, self._now = self._now, Scrape(t, metrics, loads, problem)
        return self._now

    @property
    def problem(self) -> str:
        """What is missing, in words."""
        return self._now.problem if self._now else ""

    @property
    def seen_s(self) -> float:
        """Seconds that its sums and rates are of: between the last two looks."""
        return self._now.t - self._before.t if self._now is not None and self._before is not None else 0.0

    def rank(self, rank: RankProcess, message: str, cpu: float | None) -> Rank:
        """One rank as far as it is known."""
        base = replace(unknown_rank(rank.label, rank.pid, "agentless", message, cpu))
        now = self._now
        if now is None:
            return base
        gauge = _Gauges(now.metrics, rank)
        if not gauge.any:
            load = next((x for x in now.loads if x.dp_rank == (rank.dp or 0)), None)
            if load is None:
                return base
            usage = load.tokens_used / load.tokens_total if load.tokens_used is not None and load.tokens_total else None
            return replace(base, queue=Queue(load.running, load.waiting), kv_usage=usage)
        before = self._before
        rates = _Rates(before, now, rank) if before is not None else None
        pd = {
            name: n
            for name, metric in (
                ("bootstrap", "num_prefill_bootstrap_queue_reqs"),
                ("inflight", "num_prefill_inflight_queue_reqs"),
                ("prealloc", "num_decode_prealloc_queue_reqs"),
                ("transfer", "num_decode_transfer_queue_reqs"),
            )
            if (n := gauge.whole(metric))
        }
        return replace(
            base,
            queue=Queue(
                gauge.whole("num_running_reqs"),
                gauge.whole("num_queue_reqs"),
                grammar=gauge.whole("num_grammar_queue_reqs"),
                pd=pd,
            ),
            kv_usage=gauge.number("token_usage"),
            modes=rates.modes() if rates else {},
            stages_s=rates.stages() if rates else {},
        )


def _value(samples: Sequence[Sample], rank: RankProcess, **labels: str) -> float | None:
    """The value of the sample of this rank; ranks that a label does not name count as 0."""
    want = {"tp_rank": rank.tp or 0, "pp_rank": rank.pp or 0, "dp_rank": rank.dp or 0}
    for s in samples:
        own = all(int(s.labels.get(k) or 0) == v for k, v in want.items() if s.labels.get(k, "").isdigit())
        if own and all(s.labels.get(k) == v for k, v in labels.items()) and s.value == s.value:
            return s.value
    return None


class _Gauges:
    def __init__(self, metrics: Metrics, rank: RankProcess) -> None:
        self._metrics, self._rank = metrics, rank
        # only the first TP rank reports, unless the server was told otherwise: its figures are the group's
        if self.number("num_running_reqs") is None:
            self._rank = replace(rank, tp=0)
        self.any = self.number("num_running_reqs") is not None

    def number(self, name: str) -> float | None:
        return _value(self._metrics.get(f"sglang:{name}", ()), self._rank)

    def whole(self, name: str) -> int | None:
        v = self.number(name)
        return None if v is None else int(v)


class _Rates:
    """Differences of counters between two looks."""

    def __init__(self, before: Scrape, now: Scrape, rank: RankProcess) -> None:
        self._a, self._b = before, now
        self._rank = rank
        self._s = now.t - before.t
        if self._diff("realtime_tokens_total", mode="decode") is None:
            self._rank = replace(rank, tp=0)

    def _diff(self, name: str, **labels: str) -> float | None:
        a = _value(self._a.metrics.get(f"sglang:{name}", ()), self._rank, **labels)
        b = _value(self._b.metrics.get(f"sglang:{name}", ()), self._rank, **labels)
        # a series begins with its first count: where only the later look has it, it was 0 before
        return None if b is None or self._s <= 0 else max(b - (a or 0.0), 0.0)

    def modes(self) -> dict[str, Mode]:
        """EXTEND and DECODE, as the server counts its forwards."""
        out = {}
        for name, prefix, tokens, cached in (
            ("EXTEND", "prefill", "prefill_compute", "prefill_cache"),
            ("DECODE", "decode", "decode", None),
        ):
            eager = self._diff("cuda_graph_passes_total", mode=f"{prefix}_none")
            graph = self._diff("cuda_graph_passes_total", mode=f"{prefix}_cuda_graph")
            if eager is None and graph is None:
                continue
            steps = int((eager or 0) + (graph or 0))
            if steps == 0:
                continue
            n = self._diff("realtime_tokens_total", mode=tokens)
            hit = self._diff("realtime_tokens_total", mode=cached) if cached else None
            out[name] = Mode(
                steps=steps,
                steps_per_s=steps / self._s,
                tokens_per_s=None if n is None else n / self._s,
                batch_p50=None,
                batch_max=None,
                step_ms=_NO_STEPS,
                gpu_ms=None,
                graph_share=(graph or 0) / steps,
                cached_tokens_per_s=None if hit is None else hit / self._s,
                hit_ratio=None if hit is None or n is None or hit + n <= 0 else hit / (hit + n),
            )
        return out

    def stages(self) -> dict[str, float]:
        """Seconds by stage since the look before."""
        samples = self._b.metrics.get("sglang:scheduler_stage_seconds_total", ())
        names = dict.fromkeys(s.labels["category"] for s in samples if "category" in s.labels)
        found = {n: self._diff("scheduler_stage_seconds_total", category=n) for n in names}
        return {n: v for n, v in found.items() if v}
