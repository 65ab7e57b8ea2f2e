"""A look: one snapshot plus what the reader chose, and the sums that several panels share. Pure.

Made once a snapshot; every panel draws from it, so two panels can never disagree about a figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from sgtop_core.model.snapshot import Alert, Mode, Rank, Snapshot

from . import fmt

PREFILL_MODES = ("EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND")
DECODE_MODES = ("DECODE", "TARGET_VERIFY")
SORTS = ("rank", "step p99", "gap p99", "waiting", "kv")
"""Orders of rank rows that ``o`` walks through."""
KERNEL_SORTS = ("total", "launches", "avg", "max", "name")
"""Orders of kernel rows that ``o`` walks through while their panel is large."""

FILLED = 0.95
"""Share of a window from which on it counts as filled: the newest slot never is."""

_SEVERITY = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Choices:
    """What the reader chose with keys."""

    sort: str = SORTS[0]
    kernel_sort: str = KERNEL_SORTS[0]
    filter: str = ""
    rank: str | None = None
    """Label of the rank that single-rank panels show; None: the worst."""
    frozen_s: float | None = None
    """Seconds since the screen was frozen; None: it is not."""
    maximised: str | None = None
    readonly: bool = False
    recording: bool = False


@dataclass(frozen=True, slots=True)
class ModeSum:
    """One mode, all ranks that do work of their own: rates are summed, times are the slowest rank's."""

    steps_per_s: float
    tokens_per_s: float | None
    batch_p50: float | None
    batch_max: int | None
    step_p50: float | None
    step_p99: float | None
    gpu_p50: float | None
    gpu_p99: float | None
    graph_share: float | None
    cached_tokens_per_s: float | None
    hit_ratio: float | None
    series: tuple[float | None, ...]
    rate_series: tuple[float | None, ...]


def dp_group(label: str) -> str:
    """The DP part of a rank's label: ranks of one group run the same batches."""
    match = re.search(r"DP(\d+)", label)
    return match[1] if match else ""


def leaders(ranks: Iterable[Rank]) -> tuple[Rank, ...]:
    """The first rank of each DP group that has data: their tokens add up to the server's."""
    first: dict[str, Rank] = {}
    for rank in ranks:
        group = dp_group(rank.rank)
        if group not in first or (not first[group].modes and rank.modes):
            first[group] = rank
    return tuple(first.values())


def _largest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _total(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _combine(
    series: list[tuple[float | None, ...]], how: Callable[[list[float | None]], float | None]
) -> tuple[float | None, ...]:
    if len(series) == 1:
        return series[0]
    n = max((len(s) for s in series), default=0)
    padded = [(None,) * (n - len(s)) + s for s in series]
    return tuple(how([s[i] for s in padded]) for i in range(n))


def add_modes(modes: list[Mode]) -> ModeSum | None:
    """Several ranks' figures of one mode as one; None when no step of it ran."""
    modes = [m for m in modes if m.steps or m.tokens_per_s]
    if not modes:
        return None
    slowest = max(modes, key=lambda m: m.step_ms.p50 or 0.0)
    weight = sum(m.steps for m in modes)
    graphs = [(m.graph_share, m.steps) for m in modes if m.graph_share is not None]
    computed = cached = 0.0
    for m in modes:
        if m.hit_ratio is not None and m.tokens_per_s is not None and m.hit_ratio < 1:
            computed += m.tokens_per_s
            cached += m.tokens_per_s * m.hit_ratio / (1 - m.hit_ratio)
    hit = cached / (cached + computed) if cached + computed else _largest(m.hit_ratio for m in modes)
    biggest = _largest(m.batch_max for m in modes)
    return ModeSum(
        steps_per_s=sum(m.steps_per_s for m in modes),
        tokens_per_s=_total(m.tokens_per_s for m in modes),
        batch_p50=_largest(m.batch_p50 for m in modes),
        batch_max=None if biggest is None else int(biggest),
        step_p50=slowest.step_ms.p50,
        step_p99=_largest(m.step_ms.p99 for m in modes),
        gpu_p50=_largest(m.gpu_ms.p50 if m.gpu_ms else None for m in modes),
        gpu_p99=_largest(m.gpu_ms.p99 if m.gpu_ms else None for m in modes),
        graph_share=sum(s * n for s, n in graphs) / sum(n for _, n in graphs) if graphs and weight else None,
        cached_tokens_per_s=_total(m.cached_tokens_per_s for m in modes),
        hit_ratio=hit,
        series=_combine([m.series for m in modes], _largest),
        rate_series=_combine([m.rate_series for m in modes], _total),
    )


@dataclass(frozen=True)
class Look:
    """Everything a panel may draw from."""

    snap: Snapshot
    choices: Choices = Choices()

    # --- ranks ------------------------------------------------------------------------------------

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """Ranks that pass the filter, in the chosen order."""
        wanted = self.choices.filter.casefold()
        ranks = [r for r in self.snap.ranks if wanted in r.rank.casefold() or wanted in r.state.casefold()]
        if not ranks:
            ranks = list(self.snap.ranks)
        key = _SORT_KEYS.get(self.choices.sort)
        if key is not None:
            ranks.sort(key=lambda r: -(key(r) if key(r) is not None else -1.0))  # type: ignore[operator]
        return tuple(ranks)

    @cached_property
    def leaders(self) -> tuple[Rank, ...]:
        """One rank a DP group."""
        return leaders(self.snap.ranks)

    @cached_property
    def focus(self) -> Rank | None:
        """The rank that single-rank panels show: the chosen one, else the one with most gap time that is not idle."""
        ranks = self.snap.ranks
        for rank in ranks:
            if rank.rank == self.choices.rank:
                return rank
        return max(ranks, key=_trouble, default=None)

    # --- sums -------------------------------------------------------------------------------------

    def mode(self, name: str) -> ModeSum | None:
        """One ForwardMode, all leaders."""
        return self._sums.get(name)

    @cached_property
    def _sums(self) -> dict[str, ModeSum]:
        names = {name for rank in self.leaders for name in rank.modes}
        sums = {name: add_modes([r.modes[name] for r in self.leaders if name in r.modes]) for name in names}
        return {name: total for name, total in sums.items() if total is not None}

    @cached_property
    def decode(self) -> ModeSum | None:
        """DECODE, or TARGET_VERIFY where only that runs."""
        return self.mode("DECODE") or self.mode("TARGET_VERIFY")

    @cached_property
    def graph_max_bs(self) -> int | None:
        """Largest captured decode batch; the smallest of the ranks', for that one decides."""
        return min((r.graph_max_bs for r in self.snap.ranks if r.graph_max_bs is not None), default=None)

    @cached_property
    def running(self) -> int | None:
        """Running requests, all DP groups."""
        total = _total(r.queue.running for r in self.leaders)
        return None if total is None else int(total)

    @cached_property
    def waiting(self) -> int | None:
        """Waiting requests, all DP groups."""
        total = _total(r.queue.waiting for r in self.leaders)
        return None if total is None else int(total)

    @cached_property
    def kv_usage(self) -> float | None:
        """Fullest KV pool, 0 to 1."""
        return _largest(r.kv_usage for r in self.snap.ranks)

    @cached_property
    def oldest_wait_s(self) -> float | None:
        """Age of the oldest waiting request, seconds."""
        return _largest(r.queue.oldest_wait_s for r in self.leaders)

    @cached_property
    def cost_share(self) -> float | None:
        """What sgtop takes inside the busiest scheduler process, 1.0 = one core: hooks and the agent's thread."""
        over = self.snap.overhead
        if over.hook_us_p50 is None and over.agent_cpu_share is None:
            return None
        steps = max((sum(m.steps_per_s for m in r.modes.values()) for r in self.snap.ranks), default=0.0)
        return (over.hook_us_p50 or 0.0) * 1e-6 * steps + (over.agent_cpu_share or 0.0)

    # --- state ------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """State of the connection: what Attach.state says."""
        return self.snap.attach.state

    @cached_property
    def stale(self) -> bool:
        """Figures are from before the connection was lost."""
        return self.state in ("lost", "waiting")

    @cached_property
    def agentless(self) -> bool:
        """No agent in any scheduler: figures come from outside only."""
        return self.state == "agentless"

    @cached_property
    def filled(self) -> bool:
        """As much was seen as the window holds."""
        return self.snap.covered_s >= self.snap.window_s * FILLED

    @cached_property
    def window(self) -> str:
        """What the figures are of: ``5 s``, or ``31 s of 10 min`` while less than the window was seen."""
        whole = fmt.window(self.snap.window_s)
        return whole if self.filled or self.snap.covered_s < 0.05 else f"{fmt.seconds(self.snap.covered_s)} of {whole}"

    # --- findings ---------------------------------------------------------------------------------

    @cached_property
    def alerts(self) -> tuple[Alert, ...]:
        """Findings that pass the filter: active first, then the worst, then the oldest."""
        wanted = self.choices.filter.casefold()
        alerts = [a for a in self.snap.alerts if wanted in f"{a.rank} {a.title} {a.evidence}".casefold()]
        if not alerts:
            alerts = list(self.snap.alerts)
        return tuple(sorted(alerts, key=lambda a: (not a.active, _SEVERITY.get(a.severity, 3), a.since)))

    def why_empty(self, what: str) -> str | None:
        """Why a panel that needs the agent has nothing to show; None when it has. ``what``: what it would show."""
        if self.agentless:
            return f"{what}: only with the agent in the scheduler (`sgtop doctor`)"
        if self.state == "connecting":
            return "attaching …"
        if self.state == "starting":
            return "the server is starting; figures come with its first step"
        if self.stale and not self.snap.ranks:
            return "no figures: there is no connection"
        if not self.snap.ranks:
            return "no rank of this server is on this host"
        return None


def step_p(rank: Rank, quantile: str) -> float | None:
    """A quantile of the rank's step length, ms: of decode where it decodes, else of its slowest mode."""
    for name in DECODE_MODES:
        if name in rank.modes and rank.modes[name].steps:
            value = getattr(rank.modes[name].step_ms, quantile)
            return None if value is None else float(value)
    return _largest(getattr(m.step_ms, quantile) for m in rank.modes.values() if m.steps)


def _gap_p99(rank: Rank) -> float | None:
    return rank.gaps.quantiles_ms.p99 if rank.gaps else None


def _waiting(rank: Rank) -> float | None:
    return rank.queue.waiting


def _kv(rank: Rank) -> float | None:
    return rank.kv_usage


def _step_p99(rank: Rank) -> float | None:
    return step_p(rank, "p99")


_SORT_KEYS: dict[str, Callable[[Rank], float | None]] = {
    "step p99": _step_p99,
    "gap p99": _gap_p99,
    "waiting": _waiting,
    "kv": _kv,
}

QUIET_CAUSES = frozenset({"no work", "paused", "idle"})
"""Gap causes that are nobody's fault."""


def _trouble(rank: Rank) -> float:
    if rank.state == "hung":
        return float("inf")
    if rank.gaps is None:
        return -1.0
    causes = rank.gaps.causes_ms
    own = sum(v for k, v in causes.items() if k not in QUIET_CAUSES and not k.startswith("waiting for"))
    return own if causes else rank.gaps.quantiles_ms.total
