"""Works through the events of all ranks together, once a tick. See ``axis`` for why together.

Frames go to the inbox as they come. ``advance`` takes the rows whose time has passed, table by table, joins what
belongs together and counts it in the banks, under the number of the rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sgtop_agent.wire import Frame, WireError

from sgtop_core.model.arrays import EMPTY, I64, Bool
from sgtop_core.model.axis import MAX_RANKS, firsts, lasts
from sgtop_core.model.bins import Counts, Durations
from sgtop_core.model.causes import GC, SAMPLING, AllSources, Names, Sources
from sgtop_core.model.events import Batch, Inbox
from sgtop_core.model.gaps import Chain, Gaps
from sgtop_core.model.hist_bank import HistBank, RankHists
from sgtop_core.model.rank import Hello, RankState
from sgtop_core.model.said import Said
from sgtop_core.model.steps import (
    MODES,
    EntryLengths,
    GpuOfStep,
    Lengths,
    Recent,
    ResultLengths,
    mode_numbers,
)
from sgtop_core.model.strip import RankStrip, Strip
from sgtop_core.model.tables import Blocks, Rows
from sgtop_core.model.time_bank import RankTimes, TimeBank
from sgtop_core.model.waits import Waits

EARLIER_NS = 500_000_000
"""An agent's first rows are of this long before its hello at most: it sends what it had at hand, a flush or two."""

_STEP_SUMS = ("tokens", "tokens_known", "prefill", "cached", "graph", "eager")
_FORWARD_SUMS = ("f_tokens", "f_graph", "f_eager")


class Fleet:
    """All ranks that have said hello. At most MAX_RANKS at a time."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankState] = {}
        self.end = 0
        self._inbox = Inbox()
        self._durations: HistBank[tuple[str, int]] = HistBank(Durations)
        self._counts: HistBank[tuple[str, int]] = HistBank(Counts)
        self._sums: TimeBank[tuple[str, int]] = TimeBank()
        self._stage_ns: TimeBank[str] = TimeBank()
        self._cause_ns: TimeBank[tuple[int, int]] = TimeBank()
        self._held_ns: TimeBank[int] = TimeBank()
        self._times = (self._sums, self._stage_ns, self._cause_ns, self._held_ns)
        self._names = Names()
        self._sources = AllSources(self._names)
        self._gaps = Gaps(self._sources)
        self._waits = Waits(self._sources)
        self._strip = Strip()
        self._chain = Chain()
        self._by_result = ResultLengths()
        self._by_entry: dict[int, EntryLengths] = {}
        """Ranks that have shown no result yet."""
        self._recent = Recent()
        self._gpu_of_step = GpuOfStep()
        self._hist_rows = Rows(self._durations)
        self._count_rows = Rows(self._counts)
        self._blocks = Blocks(self._sums)
        self._cause_rows = np.full((MAX_RANKS, MODES, 32), -1, np.int64)
        self._said = Said(self._names, self._stage_ns, self._strip)
        self._start = np.zeros(MAX_RANKS, np.int64)
        """ns from which on a rank is watched: nothing before it is counted, or every rate would be too high."""
        self._fresh: set[int] = set()
        """Ranks of which no stage was told yet."""
        self._forward_ct = np.full(MAX_RANKS, -1, np.int64)
        self._lost = np.zeros(MAX_RANKS, np.int64)
        self._lossy = np.zeros(MAX_RANKS, np.int64)
        """Ticks for which a jump of forward_ct still is a loss, not a step without a forward."""

    # --- who is there ---------------------------------------------------------------------------------

    def hello(self, hello: Mapping[str, Any], now: int, label: str = "") -> RankState:
        """A rank that begins anew; the others of its group wait for it under the name ``label``.

        Raises:
            OverflowError: there are MAX_RANKS already.
        """
        i = next((k for k in range(MAX_RANKS) if k not in self.ranks), None)
        if i is None:
            raise OverflowError(f"more than {MAX_RANKS} ranks")
        self._clear(i)
        about = Hello.of(hello)
        state = RankState(
            index=i,
            about=about,
            start=now,
            end=now,
            durations=RankHists(self._durations, i),
            counts=RankHists(self._counts, i),
            sums=RankTimes(self._sums, i),
            stage_ns=RankTimes(self._stage_ns, i),
            cause_ns=RankTimes(self._cause_ns, i),
            held_ns=RankTimes(self._held_ns, i),
            sources=Sources(self._names, self._sources, i),
            strip=RankStrip(self._strip, i),
        )
        self._sources.expect("stage", i, "stage" in about.caps)
        self._said.hello(state)
        self._start[i] = now - EARLIER_NS
        self._fresh.add(i)
        self.ranks[i] = state
        self._by_entry[i] = EntryLengths(i)
        self._waits.hello(i, label, about.raw, about.stages)
        return state

    def _clear(self, i: int) -> None:
        """Make number ``i`` free of whoever had it."""
        self._inbox.clear(i)
        for bank in (self._durations, self._counts):
            bank.clear(i)
        for times in self._times:
            times.clear(i)
        for part in (self._sources, self._gaps, self._strip, self._by_result, self._recent, self._gpu_of_step):
            part.clear(i)
        self._waits.clear(i)
        self._chain.cut(i)
        self._forward_ct[i] = -1
        self._lost[i] = self._lossy[i] = 0
        self._said.clear(i)
        self._fresh.discard(i)

    def keep(self, states: list[RankState]) -> None:
        """Let go of all ranks but these."""
        if len(states) != len(self.ranks):
            kept = {s.index for s in states}
            for i in [i for i in self.ranks if i not in kept]:
                del self.ranks[i]
                self._by_entry.pop(i, None)
                self._inbox.clear(i)
                self._waits.clear(i)

    def frame(self, state: RankState, frame: Frame) -> None:
        """Take a frame of a rank's agent; cheap, the work is done in ``advance``.

        Raises:
            WireError: the frame is malformed.
        """
        kind = frame.get("k")
        if kind == "ev":
            if not self._inbox.put(state.index, frame):
                state.unknown_frames += 1
            elif state.index in self._inbox.dropped:
                state.dropped = self._inbox.dropped[state.index]
        elif kind in ("stat", "bye"):
            state.told(frame)
            lost = state.lost("forward")
            if lost > self._lost[state.index]:
                self._lost[state.index], self._lossy[state.index] = lost, 8
        elif not isinstance(kind, str):
            raise WireError("a frame without a kind")
        else:
            state.unknown_frames += 1

    # --- once a tick ----------------------------------------------------------------------------------

    def advance(self, end: int) -> None:
        """Work through everything that became known at or before ``end`` (ns, a whole tick)."""
        self.end = end
        for state in self.ranks.values():
            state.end = max(end, state.start)
        for times in self._times:
            times.advance(end)
        self._strip.advance(end)
        take = self._take
        if (stage := take("stage")) is not None:
            self._stage(stage)
        if (gc := take("gc")) is not None:
            self._gc(gc)
        step = take("step")
        if step is not None:
            self._step(step)
        if (result := take("result")) is not None:
            self._result(result)
        for i, lengths in self._by_entry.items():
            self._took(lengths.add(None if step is None else step.of(i), self._sources))
        self._forward(take("forward"))
        if (queue := take("queue")) is not None:
            self._queue(queue)
        self._waits.advance(end)
        if (held := self._waits.held(end)) is not None:
            pairs = zip(held.rank.tolist(), held.cause.tolist(), strict=True)
            rows = np.array([self._held_ns.row(r, c) for r, c in pairs], np.int64)
            self._held_ns.add_ticks(rows, held.tick, held.ns)
        if (got := self._gaps.split(end)) is not None:
            self._cause_ns.add_ticks(self._causes(got.rank, got.mode, got.cause), got.tick, got.ns)
        self._durations.commit(end)
        self._counts.commit(end)
        self._sources.forget(end)

    def _take(self, table: str) -> Batch | None:
        """Rows of ranks that are still there."""
        b = self._inbox.take(table, self.end)
        if b is None:
            return None
        gone = [int(r) for r in b.rank[firsts(b.rank)] if int(r) not in self.ranks]
        if gone:
            keep = ~np.isin(b.rank, gone)
            b = Batch(table, {c: v[keep] for c, v in b.columns.items()}, b.rank[keep])
        return b if len(b) else None

    def _hist(self, what: str, rank: I64, key: I64, ns: I64) -> None:
        if len(key):
            self._durations.add(self._hist_rows.get(what, rank, key), ns)

    def _causes(self, rank: I64, mode: I64, cause: I64) -> I64:
        """Rows of ``cause_ns`` under (mode number, cause number)."""
        n = len(self._names.names)
        if self._cause_rows.shape[2] < n:
            wider = np.full((MAX_RANKS, MODES, 2 * n), -1, np.int64)
            wider[:, :, : self._cause_rows.shape[2]] = self._cause_rows
            self._cause_rows = wider
        rows: I64 = self._cause_rows[rank, mode, cause]
        new = rows < 0
        if new.any():
            missing = zip(rank[new].tolist(), mode[new].tolist(), cause[new].tolist(), strict=True)
            for r, m, c in dict.fromkeys(missing):
                self._cause_rows[r, m, c] = self._cause_ns.row(r, (m, c))
            rows = self._cause_rows[rank, mode, cause]
        return rows

    def _stage(self, b: Batch) -> None:
        rank, stage, t0, t1 = b.rank, b["stage"], b["t0"], b["t1"]
        ok = (stage >= 0) & (stage < self._said.stages[rank]) & (t1 > t0)
        if not ok.all():
            rank, stage, t0, t1 = rank[ok], stage[ok], t0[ok], t1[ok]
        if not len(stage):
            return
        if self._fresh:
            self._begin(rank, t0)
        t0 = np.maximum(t0, self._start[rank])
        self._stage_ns.add(self._said.stage_row[rank, stage], t0, t1)
        self._waits.stage(rank, stage, t0, t1)
        cause = self._said.stage_cause[rank, stage]
        idle = self._said.stage_idle[rank, stage]
        if idle.any():
            self._sources.push("idle", t0[idle], t1[idle], cause[idle], rank[idle])
            self._strip.add(rank[idle], self._said.stage_cell[rank[idle], stage[idle]], t0[idle], t1[idle])
            first = firsts(rank)
            self._sources.reported("stage", rank[first], t1[lasts(rank, first)])
            busy = ~idle
            rank, t0, t1, cause = rank[busy], t0[busy], t1[busy], cause[busy]
        self._sources.push("stage", t0, t1, cause, rank)

    def _begin(self, rank: I64, t0: I64) -> None:
        """The first stages of some ranks: they are watched from there on, which may be before their hello."""
        for at in firsts(rank).tolist():
            i = int(rank[at])
            if i in self._fresh:
                self._fresh.discard(i)
                state = self.ranks[i]
                state.start = min(state.start, max(int(t0[at]), int(self._start[i])))
                state.end = max(self.end, state.start)
                self._start[i] = state.start

    def _gc(self, b: Batch) -> None:
        # a collection on another thread holds the GIL too, so it stops the main thread all the same
        code = np.full(len(b), self._names.code(GC), np.int64)
        self._sources.push("gc", b["t0"], b["t1"], code, b.rank)
        main = b["main"] == 1
        self._hist("gc", b.rank[main], np.clip(b["gen"][main], 0, MODES - 1), (b["t1"] - b["t0"])[main])

    def _step(self, b: Batch) -> None:
        rank, mode, tokens, graph = b.rank, mode_numbers(b["mode"]), b["tokens"], b["graph"]
        first = firsts(rank)
        last = lasts(rank, first)
        latest = np.full(MAX_RANKS * MODES, -1, np.int64)
        np.maximum.at(latest, rank * MODES + mode, b["t1"])
        for at in np.flatnonzero(latest >= 0).tolist():
            self.ranks[at // MODES].mode_last[at % MODES] = int(latest[at])
        ends = zip(
            rank[first].tolist(), np.maximum.reduceat(b["ct"], first).tolist(), b["t1"][last].tolist(), strict=True
        )
        for r, newest, returned in ends:
            state = self.ranks[r]
            state.last_ct, state.last_step_at = max(state.last_ct or 0, newest), returned
        self._counts.add(self._count_rows.get("bs", rank, mode), np.maximum(b["bs"], 0))
        known = tokens >= 0
        counted = np.where(known, tokens, 0)
        self._recent.put(rank, b["ct"], mode, counted, b["t0"])
        self._waits.step(rank, b["ct"], b["t0"], b["t1"])
        self._blocks.add(
            _STEP_SUMS,
            rank,
            mode,
            counted,
            known,
            np.maximum(counted - np.maximum(b["decode_tokens"], 0), 0),
            np.maximum(b["cached"], 0),
            graph == 1,
            (graph == 0) & ~self._said.graphless[rank, 0, mode],
        )
        measured = b["hook_ns"] >= 0
        hook = b["hook_ns"][measured]
        self._hist("hook", rank[measured], np.zeros(len(hook), np.int64), hook)

    def _took(self, got: Lengths) -> None:
        if not len(got.mode):
            return
        self._hist("step", got.rank, got.mode, got.end - got.start)
        cells = self._said.cells[got.rank, 0, got.mode]
        sure = self._said.no_forwards[got.rank]
        for certain, which in ((True, sure), (False, ~sure)):
            if which.any():
                self._strip.add(got.rank[which], cells[which], got.start[which], got.end[which], certain)

    def _forward(self, b: Batch | None) -> None:
        if b is None:
            self._finish_gpu(EMPTY, EMPTY, EMPTY)
            return
        rank, mode, graph = b.rank, mode_numbers(b["mode"]), b["graph"]
        draft = b["runner"] == 1
        key = mode + MODES * draft
        eager = (graph == 0) & ~self._said.graphless[rank, draft.astype(np.int64), mode]
        t0, t1, g0, g1, g2 = (b[c] for c in ("t0", "t1", "gpu0", "gpu1", "gpu2"))
        self._hist("host", rank, key, t1 - t0)
        self._waits.forward(rank, b["ct"], t0)
        self._blocks.add(_FORWARD_SUMS, rank, key, np.maximum(b["tokens"], 0), graph == 1, eager)
        gpu = (g0 >= 0) & (g1 >= g0)
        if gpu.any():
            self._hist("gpu", rank[gpu], key[gpu], (g1 - g0)[gpu])
            after = gpu & (g2 > g1)
            sampling = np.full(int(after.sum()), self._names.code(SAMPLING), np.int64)
            self._sources.push("sampling", g1[after], g2[after], sampling, rank[after])
        self._finish_gpu(rank[gpu], b["ct"][gpu], (g1 - g0)[gpu])
        on_gpu = self._said.on_gpu[rank]
        known = np.where(on_gpu, gpu, t1 >= t0)
        self._spans(rank, np.where(on_gpu, g0, t0), np.where(on_gpu, g1, t1), mode, draft, graph, b["ct"], known)

    def _finish_gpu(self, rank: I64, ct: I64, ns: I64) -> None:
        rank, ct, ns = self._gpu_of_step.add(rank, ct, ns)
        if len(rank):
            mode, _, _ = self._recent.find(rank, ct)
            ok = mode >= 0
            self._hist("step_gpu", rank[ok], mode[ok], ns[ok])

    def _jumps(self, rank: I64, ct: I64) -> Bool | None:
        """Forwards before which others were lost, in ranks that lost some lately."""
        first = firsts(rank)
        owner = rank[first]
        previous = np.concatenate([[-1], ct[:-1]])
        previous[first] = self._forward_ct[owner]
        self._forward_ct[owner] = ct[lasts(rank, first)]
        if not self._lossy[owner].any():
            return None
        jump = (self._lossy[rank] > 0) & (ct > previous + 1) & (previous >= 0)
        self._lossy[owner] = np.maximum(self._lossy[owner] - 1, 0)
        self._lossy[rank[jump]] = 0
        return jump

    def _spans(self, rank: I64, t0: I64, t1: I64, mode: I64, draft: Bool, graph: I64, ct: I64, known: Bool) -> None:
        unsure = self._jumps(rank, ct)
        first = firsts(rank)
        ends_open = rank[first][~known[lasts(rank, first)]]
        if not known.all():  # a forward without times: the gaps on both its sides are not known
            holes, at = rank[~known], np.cumsum(known)[~known]
            rank, t0, t1, mode, graph = (x[known] for x in (rank, t0, t1, mode, graph))
            draft = draft[known]
            same = at < len(rank)
            same[same] = rank[at[same]] == holes[same]
            behind = np.zeros(len(rank), np.bool_)
            behind[at[same]] = True
            unsure = behind if unsure is None else behind | unsure[known]
            if not len(rank):
                self._chain.cut(ends_open)
                return
        if bool(np.any((t0[1:] < t0[:-1]) & (rank[1:] == rank[:-1]))):
            order = np.lexsort((t0, rank))
            rank, t0, t1, mode, graph = (x[order] for x in (rank, t0, t1, mode, graph))
            draft = draft[order]
            unsure = None if unsure is None else unsure[order]
        spans = self._chain.add(rank, t0, t1)
        self._known_forwards(rank, t0)
        self._chain.cut(ends_open)
        gap = spans.gap if unsure is None else np.where(unsure, -1, spans.gap)
        cells = self._said.cells[rank, (graph == 0).astype(np.int64), mode]
        target = ~draft
        self._strip.add(rank[target], cells[target], t0[target], t1[target])
        if draft.any():
            self._strip.add(rank[draft], cells[draft], t0[draft], t1[draft], certain=False)
        self._stage_ns.add(self._said.busy_row[rank, mode], spans.busy0, spans.t1)
        seen = gap >= 0
        self._hist("gap", rank[seen], mode[seen], gap[seen])
        real = gap > 0
        self._gaps.add(rank[real], (t0 - gap)[real], t0[real], mode[real])

    def _known_forwards(self, rank: I64, t0: I64) -> None:
        """Note from when to when forwards are known; ``t0`` (ns) is ordered within a rank."""
        for i in firsts(rank).tolist():
            r = int(rank[i])
            state = self.ranks[r]
            begin = state.forwards[0] if state.forwards else int(t0[i])
            state.forwards = begin, self._chain.end(r), int(self._forward_ct[r])

    def _result(self, b: Batch) -> None:
        rank = b.rank
        for r in rank[firsts(rank)].tolist():
            self._by_entry.pop(r, None)  # its loop shows results
        self._took(self._by_result.add(rank, b["ct"], b["t"], self._recent, self._sources))
        accepted = b["accepted"]
        if int(accepted.max()) >= 0:
            mode, tokens, _ = self._recent.find(rank, b["ct"])
            ok = (accepted >= 0) & (mode >= 0)
            one = np.ones(int(ok.sum()), np.bool_)
            self._blocks.add(("tokens", "tokens_known"), rank[ok], mode[ok], (accepted - tokens)[ok], one)
        finished = b["finished"]
        ok = finished >= 0
        if ok.any():
            zero = np.zeros(int(ok.sum()), np.int64)
            self._blocks.add(("finished", "finished_known"), rank[ok], zero, finished[ok], zero == 0)

    def _queue(self, b: Batch) -> None:
        last = lasts(b.rank, firsts(b.rank))
        for i in last.tolist():
            self.ranks[int(b.rank[i])].queue = {c: int(v[i]) for c, v in b.columns.items()}
