"""Makes a snapshot's Rank from what a RankState has counted. Looks at bins, never at events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgtop_core.model.bins import COARSE_EDGES_NS, coarse, quantiles
from sgtop_core.model.hist_bank import Summary
from sgtop_core.model.rank import BUSY, RankState
from sgtop_core.model.snapshot import GC, Forward, Histogram, Mode, Quantiles, Queue, Rank, StepGaps
from sgtop_core.model.steps import MODES
from sgtop_core.model.windows import WINDOWS

_EDGES_MS = tuple(e / 1e6 for e in COARSE_EDGES_NS)
_PD = ("pd_bootstrap", "pd_inflight", "pd_prealloc", "pd_transfer")

PROMPTS = ("EXTEND", "MIXED", "SPLIT_PREFILL")
"""Modes whose steps compute prompts."""

Sums = Mapping[tuple[str, int], int]


class RankView:
    """One look at a rank in one window (``level`` of windows.WINDOWS)."""

    def __init__(self, state: RankState, level: int) -> None:
        self.s = state
        self.level = level
        self.covered_s = self.covered(state, level)
        self.sums: Sums = state.sums.read(level)
        self.durations = state.durations.read(level)
        self.batches = state.counts.read(level)

    @staticmethod
    def covered(state: RankState, level: int) -> float:
        """Seconds of the window that hold data of this rank."""
        return WINDOWS[level].span(state.end, state.start) / 1e9

    def rank(self, label: str) -> Rank:
        """All that the events say; what they do not say (pid, state, CPU) is left open."""
        s = self.s
        stages = s.stage_ns.read(self.level)
        return Rank(
            rank=label,
            pid=None,
            state="live",
            message="",
            last_step=s.last_ct,
            last_step_age_s=None,
            modes=self.modes(),
            forwards=self.forwards(),
            stages_s={name: ns / 1e9 for name, ns in stages.items() if not name.startswith(BUSY)},
            queue=self.queue(),
            kv_usage=self.kv_usage(),
            gaps=self.gaps(sum(ns for name, ns in stages.items() if name.startswith(BUSY)) or None),
            gc=self.gc(),
            strip=s.strip.read(self.level),
            graph_max_bs=_positive(s.graph.get("decode_max_bs")),
            finished_per_s=self._rate("finished", 0, "finished_known"),
            cpu=s.scheduling.view(self.level, s.end) if s.scheduling is not None else None,
            holds_up_ms=self.holds_up(),
        )

    def _ms(self, what: str, key: int) -> Quantiles | None:
        x = self.durations.get((what, key))
        return None if x is None else Quantiles(x.count, x.p50 / 1e6, x.p99 / 1e6, x.max / 1e6, x.total / 1e6)

    def _rate(self, what: str, key: int, known: str) -> float | None:
        if not self.sums.get((known, key)) or self.covered_s <= 0:
            return None
        return self.sums.get((what, key), 0) / self.covered_s

    def _share(self, yes: str, no: str, key: int) -> float | None:
        a, b = self.sums.get((yes, key), 0), self.sums.get((no, key), 0)
        return a / (a + b) if a + b else None

    def modes(self) -> dict[str, Mode]:
        """Steps by mode, those with a step in the window."""
        return {self.s.mode_name(n): self._mode(n, bs) for (_, n), bs in self.batches.items()}

    def _mode(self, n: int, bs: Summary) -> Mode:
        s = self.s
        series = s.durations.medians(self.level, ("step", n))
        cached, prefill = self.sums.get(("cached", n), 0), self.sums.get(("prefill", n), 0)
        prompts = cached + prefill > 0 and s.mode_name(n) in PROMPTS
        return Mode(
            steps=bs.count,
            steps_per_s=bs.count / self.covered_s if self.covered_s > 0 else 0.0,
            tokens_per_s=self._rate("tokens", n, "tokens_known"),
            batch_p50=bs.p50,
            batch_max=bs.max,
            step_ms=self._ms("step", n) or Quantiles(0, None, None, None),
            gpu_ms=self._ms("step_gpu", n),
            graph_share=self._share("graph", "eager", n),
            cached_tokens_per_s=cached / self.covered_s if prompts and self.covered_s > 0 else None,
            hit_ratio=cached / (cached + prefill) if prompts else None,
            series=tuple(None if v is None else v / 1e6 for v in series),
            rate_series=self._rates(n),
        )

    def _rates(self, n: int) -> tuple[float | None, ...]:
        s, w = self.s, WINDOWS[self.level]
        tokens = s.sums.slots(self.level, ("tokens", n))
        known = s.sums.slots(self.level, ("tokens_known", n))
        if tokens is None or known is None:
            return ()
        head = (s.end - 1) // w.slot_ns
        last = (s.end - head * w.slot_ns) / 1e9  # the newest slot is filled up to here
        full = w.slot_ns / 1e9
        rates = [t / full if k else None for t, k in zip(tokens.tolist(), known.tolist(), strict=True)]
        if rates[-1] is not None:
            rates[-1] *= full / last
        return tuple(rates)

    def forwards(self) -> tuple[Forward, ...]:
        """Forwards by (runner, mode), those in the window."""
        s = self.s
        out = []
        for what, key in self.durations:
            if what == "host" and (host := self._ms("host", key)) is not None:
                out.append(
                    Forward(
                        runner="draft" if key >= MODES else "target",
                        mode=s.mode_name(key % MODES),
                        count=host.count,
                        host_ms=host,
                        gpu_ms=self._ms("gpu", key),
                        graph_share=self._share("f_graph", "f_eager", key),
                        tokens_per_s=self.sums.get(("f_tokens", key), 0) / self.covered_s if self.covered_s else None,
                    )
                )
        return tuple(out)

    def _known_s(self) -> float:
        """Seconds of the window of which is known whether a forward ran.

        Not those before the first forward that the hooks saw, nor those in which a forward runs whose end has not come
        yet (a prefill takes half a second): neither is time between forwards.
        """
        s = self.s
        if s.forwards is None:
            return self.covered_s
        first, until, ct = s.forwards
        head = max(0, first - (s.end - round(self.covered_s * 1e9)))
        tail = max(0, s.end - until) if s.last_ct is not None and s.last_ct > ct else 0
        return self.covered_s - (head + tail) / 1e9

    def gaps(self, busy_ns: int | None) -> StepGaps | None:
        """Gaps; None where the agent cannot see forwards."""
        s = self.s
        if "forward" not in s.caps:
            return None
        causes: dict[str, float] = {}
        by_mode_causes: dict[str, dict[str, float]] = {}
        total = 0
        for (mode, code), ns in sorted(s.cause_ns.read(self.level).items(), key=lambda kv: -kv[1]):
            name, m = s.names.names[code], by_mode_causes.setdefault(s.mode_name(mode), {})
            causes[name] = causes.get(name, 0.0) + ns / 1e6
            m[name] = ns / 1e6
            total += ns
        by_mode: dict[str, Quantiles] = {}
        histograms: dict[str, Histogram] = {}
        all_bins = None
        top: float | None = None
        for what, key in self.durations:
            x = self._ms("gap", key) if what == "gap" else None
            if x is None or x.max is None:
                continue
            name, hist = s.mode_name(key), s.durations.histogram(self.level, (what, key))
            by_mode[name] = x
            histograms[name] = Histogram(_EDGES_MS, tuple(coarse(hist).tolist()))
            all_bins = hist if all_bins is None else all_bins + hist
            top = max(top or 0.0, x.max)
        known_s = self._known_s()
        busy = min(busy_ns / 1e9 / known_s, 1.0) if busy_ns is not None and known_s > 0 else None
        if all_bins is None or top is None:
            return StepGaps(Quantiles(0, None, None, None, total / 1e6), s.label, causes, None, busy)
        p50, p99 = (
            None if v is None else min(v / 1e6, top) for v in quantiles(all_bins, s.durations.middles, (0.5, 0.99))
        )
        return StepGaps(
            quantiles_ms=Quantiles(int(all_bins.sum()), p50, p99, top, total / 1e6),
            label=s.label,
            causes_ms=causes,
            histogram=Histogram(_EDGES_MS, tuple(coarse(all_bins).tolist())),
            busy_share=busy,
            by_mode=by_mode,
            histograms=histograms,
            causes_by_mode_ms=by_mode_causes,
        )

    def holds_up(self) -> dict[str, float]:
        """What the rank did while others waited for it, most first."""
        held = sorted(self.s.held_ns.read(self.level).items(), key=lambda kv: -kv[1])
        return {self.s.names.names[code]: ns / 1e6 for code, ns in held}

    def gc(self) -> GC | None:
        """Collections on the main thread; None where the agent does not report them."""
        s = self.s
        if "gc" not in s.caps:
            return None
        by, total, top = {}, 0.0, None
        for what, gen in self.durations:
            q = self._ms("gc", gen) if what == "gc" else None
            if q is not None and q.max is not None:
                by[gen] = q.count
                total += q.total
                top = max(top or 0.0, q.max)
        return GC(sum(by.values()), total, top, by)

    def queue(self) -> Queue:
        """The latest queue row."""
        q = self.s.queue
        oldest = _known(q.get("oldest_ns"))
        return Queue(
            running=_known(q.get("running")),
            waiting=_known(q.get("waiting")),
            grammar=_known(q.get("grammar")),
            oldest_wait_s=None if oldest is None else oldest / 1e9,
            retracted=_known(q.get("retracted")),
            pd={k[3:]: v for k in _PD if (v := _known(q.get(k))) is not None},
        )

    def kv_usage(self) -> float | None:
        """Share of the KV pool that running requests hold."""
        q = self.s.queue
        used, total = _known(q.get("kv_used")), q.get("kv_total", -1)
        return None if used is None or total <= 0 else used / total


def _known(v: int | None) -> int | None:
    return None if v is None or v < 0 else v


def _positive(v: Any) -> int | None:
    return v if isinstance(v, int) and v > 0 else None
