"""Reads a recording once, through the same model as the screen, and adds up its 5 s windows without overlap.

Counts, totals and maxima are exact; quantiles come from the model's bins (at most 2 % off), added up over all blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from sgtop_core.model.bins import quantiles
from sgtop_core.model.model import LAG_NS
from sgtop_core.model.rank import BUSY, RankState
from sgtop_core.model.rank_view import PROMPTS
from sgtop_core.model.snapshot import Alert, Quantiles, Rank
from sgtop_core.model.steps import MODES
from sgtop_core.model.windows import TICK_NS, WINDOWS
from sgtop_core.recording import kernels as raw
from sgtop_core.recording import state as session_state
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.feed import Feed
from sgtop_core.recording.reader import Recording

from .figures import (
    BLOCK_S,
    AlertFigures,
    ContentionFigures,
    CulpritFigures,
    Figures,
    ForwardFigures,
    ModeFigures,
    OtherCulprits,
    RankFigures,
    severity,
)
from .kernels import KernelViews

BLOCK_NS = int(BLOCK_S * 1e9)
MAX_CULPRITS = 20
_LEVEL = 0
assert WINDOWS[_LEVEL].seconds == BLOCK_S, "a block is the model's shortest window"


@dataclass(slots=True)
class _Hist:
    """A histogram of the model's bins, added up."""

    hist: npt.NDArray[np.int64] | None = None
    total: int = 0
    top: int = 0

    def add(self, hist: npt.NDArray[np.int32], total: int, top: int) -> None:
        self.hist = hist.astype(np.int64) if self.hist is None else self.hist + hist
        self.total += total
        self.top = max(self.top, top)

    def quantiles(self, middles: npt.NDArray[np.float64], unit: float) -> Quantiles | None:
        if self.hist is None:
            return None
        p50, p99 = (None if v is None else min(v, self.top) / unit for v in quantiles(self.hist, middles, (0.5, 0.99)))
        return Quantiles(int(self.hist.sum()), p50, p99, self.top / unit, self.total / unit)


@dataclass(slots=True)
class _RankSum:
    """What the blocks of one rank add up to."""

    pid: int | None = None
    seconds: float = 0.0
    durations: dict[tuple[str, Any], _Hist] = field(default_factory=lambda: defaultdict(_Hist))
    batches: dict[str, _Hist] = field(default_factory=lambda: defaultdict(_Hist))
    sums: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    stages: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    causes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    busy_ns: int = 0
    busy_known: bool = False
    label: str | None = None
    queue: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    cpu: list[Any] = field(default_factory=list)
    blocks: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    middles: npt.NDArray[np.float64] | None = None
    counts_middles: npt.NDArray[np.float64] | None = None


@dataclass(slots=True)
class Held:
    """A finding from its begin to its end."""

    last: Alert
    until: float
    worst: list[tuple[Alert, int]] = field(default_factory=list)
    """How it stood while it was as severe as ever, and for how many snapshots each."""

    def see(self, a: Alert, unix: float) -> None:
        """As it stands at a snapshot."""
        self.last = a
        if a.active:
            self.until = unix
        if self.worst and (not a.active or a.quiet_s):
            return  # as it stood when it faded
        if self.worst and severity(a) < severity(self.worst[0][0]):
            return
        if self.worst and severity(a) > severity(self.worst[0][0]):
            self.worst.clear()
        if self.worst and self.worst[-1][0] == a:
            self.worst[-1] = (a, self.worst[-1][1] + 1)
        else:
            self.worst.append((a, 1))

    def figures(self) -> AlertFigures:
        """The middle of its worst time stands for it: no number in a finding says when it was strongest, and its edges
        show how it rose and faded.
        """
        reach = list(accumulate(n for _, n in self.worst))
        a, _ = self.worst[bisect_left(reach, (reach[-1] + 1) // 2)]
        return AlertFigures(replace(a, active=self.last.active), max(self.until - self.last.since, 0.0))


class _Measure:
    def __init__(self) -> None:
        self.ranks: dict[str, _RankSum] = {}
        self.views: dict[str, KernelViews] = defaultdict(KernelViews)
        self.alerts: dict[tuple[str, str | None, float], Held] = {}
        self.last_read = 0

    def look(self, feed: Feed) -> None:
        """At every tick: what is not a sum."""
        assert feed.unix is not None
        for a in feed.model.alerts:
            self.alerts.setdefault((a.id, a.rank, a.since), Held(a, a.since)).see(a, feed.unix)
        for label, slot in feed.model.slots.items():
            if slot.state is not None:
                r = self.ranks.setdefault(label, _RankSum())
                for name in ("running", "waiting"):
                    n = slot.state.queue.get(name, -1)
                    if n >= 0:
                        r.queue[name].append(n)
                if slot.kernels is not None:
                    self.views[label].see(slot.kernels, feed.now)

    def kernels(self, e: Entry) -> None:
        """Single kernels are no part of the model; they say which seconds a view holds."""
        if e.frame.get("k") == raw.KIND and e.frame.get("e") == raw.TABLE:
            self.views[e.source].block(e.frame)

    def block(self, feed: Feed, border: int) -> None:
        """At the first tick at or after the end of every block, ``border``: add its window."""
        end = feed.model.end
        views = {r.rank: r for r in feed.model.ranks(_LEVEL, feed.now)}
        for label, slot in feed.model.slots.items():
            s = slot.state
            # A rank that began after the border (the ticks before were lost) is in the next block with all it has.
            if s is not None and (end == border or s.start < border):
                r = self.ranks.setdefault(label, _RankSum())
                r.pid = slot.pid
                covered = (end - max(self.last_read, s.start)) / 1e9
                _add(r, s, views[label], min(covered, BLOCK_S))
        self.last_read = border


def _add(r: _RankSum, s: RankState, view: Rank, covered: float) -> None:
    if covered <= 0:
        return
    r.seconds += covered
    r.middles, r.counts_middles = s.durations.middles, s.counts.middles
    r.label = s.label if "forward" in s.caps else None
    for key, x in s.durations.read(_LEVEL).items():
        what, n = key
        name: Any = n if what == "gc" else s.mode_name(n % MODES)
        if what in ("host", "gpu"):
            name = ("draft" if n >= MODES else "target", name)
        r.durations[what, name].add(s.durations.histogram(_LEVEL, key), x.total, x.max)
    for key, x in s.counts.read(_LEVEL).items():
        if key[0] == "bs":
            r.batches[s.mode_name(key[1])].add(s.counts.histogram(_LEVEL, key), x.total, x.max)
    for (what, n), amount in s.sums.read(_LEVEL).items():
        r.sums[what, s.mode_name(n) if not what.startswith("f_") else str(n)] += amount
    for stage, ns in s.stage_ns.read(_LEVEL).items():
        if stage.startswith(BUSY):
            r.busy_ns += ns
            r.busy_known = True
        else:
            r.stages[str(stage)] += ns
    for (_, code), ns in s.cause_ns.read(_LEVEL).items():
        r.causes[s.names.names[code]] += ns
    if view.cpu is not None:
        r.cpu.append(view.cpu)
    r.blocks.append((covered, _block_figures(view, covered)))


def _block_figures(v: Rank, covered: float) -> dict[str, float]:
    """The figures that a diff compares, of one block. Names hold their units."""
    out: dict[str, float | None] = {}
    for mode, m in v.modes.items():
        out[f"{mode} steps/s"] = m.steps / covered
        out[f"{mode} tokens/s"] = m.tokens_per_s
        out[f"{mode} batch p50"] = m.batch_p50
        out[f"{mode} step p50 ms"] = m.step_ms.p50
        out[f"{mode} step p99 ms"] = m.step_ms.p99
        if m.gpu_ms is not None:
            out[f"{mode} GPU p50 ms"] = m.gpu_ms.p50
        out[f"{mode} graph share %"] = None if m.graph_share is None else 100 * m.graph_share
        out[f"{mode} cache hits %"] = None if m.hit_ratio is None else 100 * m.hit_ratio
    if v.gaps is not None:
        out["gap p50 ms"] = v.gaps.quantiles_ms.p50
        out["gap p99 ms"] = v.gaps.quantiles_ms.p99
        for cause, ms in v.gaps.causes_ms.items():
            out[f"gaps: {cause} % of time"] = ms / 10 / covered
        out["inside forwards % of time"] = None if v.gaps.busy_share is None else 100 * v.gaps.busy_share
    for stage, seconds in v.stages_s.items():
        out[f"stage {stage} % of time"] = 100 * seconds / covered
    if v.gc is not None:
        out["gc % of time"] = v.gc.total_ms / 10 / covered
    if v.cpu is not None and v.cpu.wait_ms is not None:
        out["waits for a CPU % of time"] = v.cpu.wait_ms / 10 / covered
    out["requests running"] = None if v.queue.running is None else float(v.queue.running)
    out["requests waiting"] = None if v.queue.waiting is None else float(v.queue.waiting)
    return {k: x for k, x in out.items() if x is not None}


def _last_ticks(recording: Recording) -> list[int]:
    """``end`` of the model after the last tick of each stretch without damage, so that blocks can be counted backwards
    from it: after damage the ranks begin anew, and a block across it would miss what came before.
    """
    out: list[int] = []
    for stretch in recording.stretches():
        for i in reversed(stretch):
            ticks = [
                e.mono_ns
                for e in recording.chunk_entries(i)
                if e.source == session_state.SOURCE and e.frame.get("k") == "tick"
            ]
            if ticks:
                out.append((max(ticks) - LAG_NS) // TICK_NS * TICK_NS)
                break
    return out


def measure(recording: Recording) -> Figures:
    """The figures of a recording.

    Raises:
        RecordingError: it was made without a session (no ticks).
    """
    lasts = _last_ticks(recording)
    if not lasts:
        raise RecordingError(f"{recording.name} holds no snapshot", "it was broken off in its first second")
    feed, m = Feed(), _Measure()
    before: tuple[int, int] | None = None
    for e in recording:
        if not feed.take(e):
            m.kernels(e)
            continue
        m.look(feed)
        # Blocks end at the last tick, so that the odd part is at the start, where the window is not full yet.
        end = feed.model.end
        last = next((x for x in lasts if x >= end), lasts[-1])
        border = last - (last - end + BLOCK_NS - 1) // BLOCK_NS * BLOCK_NS
        if border == end or (before is not None and before[0] == last and before[1] != border):
            m.block(feed, border)
        before = last, border
    if feed.unix is None:
        raise RecordingError(f"{recording.name} holds no snapshot", "it was broken off in its first second")
    overhead = feed.model.overhead(len(WINDOWS) - 1)
    return Figures(
        file=recording.name,
        seconds=recording.seconds,
        start_unix=feed.unix - (feed.now - recording.start_ns) / 1e9,
        complete=recording.complete,
        damage=recording.damage,
        server=feed.model.server,
        way=feed.model.attach.way,
        ranks=tuple(_rank(label, r, m.views[label]) for label, r in m.ranks.items()),
        alerts=tuple(held.figures() for held in sorted(m.alerts.values(), key=lambda x: x.last.since)),
        lost=feed.model.lost(),
        hook_us_p50=overhead.hook_us_p50,
        hook_us_p99=overhead.hook_us_p99,
    )


def _rank(label: str, r: _RankSum, views: KernelViews) -> RankFigures:
    def ms(what: str, name: Any) -> Quantiles | None:
        h = r.durations.get((what, name))
        return h.quantiles(r.middles, 1e6) if h is not None and r.middles is not None else None

    gaps = _Hist()
    for (what, _), h in r.durations.items():
        if what == "gap" and h.hist is not None:
            gaps.add(h.hist.astype(np.int64), h.total, h.top)
    queue = {k: (sum(v) / len(v), max(v)) for k, v in r.queue.items() if v}
    names = sorted({k for _, block in r.blocks for k in block})
    full = [(s, b) for s, b in r.blocks if s > 0.9 * BLOCK_S]
    traced, rows = views.sums()
    return RankFigures(
        rank=label,
        pid=r.pid,
        seconds=r.seconds,
        modes={mode: _mode(mode, r, h, ms) for mode, h in sorted(r.batches.items())},
        forwards=tuple(
            ForwardFigures(runner, mode, q.count, q, ms("gpu", (runner, mode)))
            for (what, name), _ in sorted(r.durations.items(), key=str)
            if what == "host" and (q := ms("host", name)) is not None
            for runner, mode in (name,)
        ),
        stages_s={k: v / 1e9 for k, v in sorted(r.stages.items(), key=lambda kv: -kv[1]) if v},
        gap_label=r.label,
        gaps_ms=gaps.quantiles(r.middles, 1e6) if r.middles is not None else None,
        causes_ms={k: v / 1e6 for k, v in sorted(r.causes.items(), key=lambda kv: -kv[1]) if v},
        gc={
            int(name): q
            for (what, name) in sorted((k for k in r.durations if k[0] == "gc"), key=str)
            if (q := ms(what, name)) is not None
        },
        busy_share=r.busy_ns / 1e9 / r.seconds if r.busy_known and r.seconds else None,
        finished=_finished(r),
        queue=queue,
        contention=contention(r.cpu),
        kernels=rows,
        blocks={name: tuple(b.get(name) for _, b in full) for name in names},
        traced=traced,
    )


def _finished(r: _RankSum) -> int | None:
    known = sum(v for (what, _), v in r.sums.items() if what == "finished_known")
    return sum(v for (what, _), v in r.sums.items() if what == "finished") if known else None


def _mode(mode: str, r: _RankSum, h: _Hist, ms: Any) -> ModeFigures:
    batch = h.quantiles(r.counts_middles, 1.0) if r.counts_middles is not None else None
    steps = batch.count if batch is not None else 0
    tokens = r.sums["tokens", mode] if r.sums.get(("tokens_known", mode)) else None
    graph, eager = r.sums.get(("graph", mode), 0), r.sums.get(("eager", mode), 0)
    cached, prefill = r.sums.get(("cached", mode), 0), r.sums.get(("prefill", mode), 0)
    prompts = cached + prefill > 0 and mode in PROMPTS
    return ModeFigures(
        steps=steps,
        steps_per_s=steps / r.seconds if r.seconds else 0.0,
        tokens=tokens,
        tokens_per_s=tokens / r.seconds if tokens is not None and r.seconds else None,
        batch_p50=batch.p50 if batch is not None else None,
        batch_max=int(batch.max) if batch is not None and batch.max is not None else None,
        step_ms=ms("step", mode) or Quantiles(0, None, None, None),
        gpu_ms=ms("step_gpu", mode),
        graph_share=graph / (graph + eager) if graph + eager else None,
        hit_ratio=cached / (cached + prefill) if prompts else None,
    )


def contention(views: list[Any]) -> ContentionFigures | None:
    """What the blocks' views of the CPU add up to."""
    if not views:
        return None

    def total(name: str) -> Any:
        values = [v for c in views if (v := getattr(c, name)) is not None]
        return sum(values) if values else None

    who: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0, 0.0])
    for c in views:
        for k in c.culprits:
            who[k.comm, k.pid][0] += k.count
            who[k.comm, k.pid][1] += k.ms
    longest = [c.longest_ms for c in views if c.longest_ms is not None]
    culprits = sorted(who.items(), key=lambda kv: -kv[1][1])
    others = [sums for _, sums in culprits[MAX_CULPRITS:]]
    return ContentionFigures(
        level=views[-1].level,
        wait_ms=total("wait_ms"),
        preemptions=total("preemptions"),
        longest_ms=max(longest) if longest else None,
        throttled_ms=total("throttled_ms"),
        migrations=total("migrations"),
        culprits=tuple(CulpritFigures(comm, pid, int(n), ms) for (comm, pid), (n, ms) in culprits[:MAX_CULPRITS]),
        others=OtherCulprits(int(sum(n for n, _ in others)), sum(ms for _, ms in others)) if others else None,
    )
