"""One rank: takes its frames, keeps its windows. ``rank_view`` makes the snapshot's Rank from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from sgtop_agent.wire import STAGES, Frame, WireError

from sgtop_core.model.arrays import EMPTY, I64, Bool
from sgtop_core.model.bins import Counts, Durations
from sgtop_core.model.causes import GC, NO_WORK, PAUSED, SAMPLING, Names, Sources
from sgtop_core.model.events import Batch, Inbox
from sgtop_core.model.gaps import Chain, Gaps
from sgtop_core.model.snapshot import Cpu
from sgtop_core.model.steps import (
    MODES,
    EntryLengths,
    GpuOfStep,
    Lengths,
    Recent,
    ResultLengths,
    mode_numbers,
)
from sgtop_core.model.strip import Strip
from sgtop_core.model.windows import HistBank, TimeBank

GRAPHED = {"DECODE": "decode", "TARGET_VERIFY": "verify"}
"""Modes whose forwards replay a CUDA graph on a healthy server → key of ``hello.graph``."""

BUSY = " busy"
"""Key in ``stage_ns`` of the time inside forwards; no stage has a space in its name."""


class Scheduling(Protocol):
    """What the kernel's scheduler does to this rank's main thread; ``sgtop_core.contention`` has one."""

    def view(self, level: int, end: int) -> Cpu | None:
        """The window ``level`` that ends at ``end`` (ns)."""


class RankState:
    """What is known of one rank since the hello of its agent.

    Keys of ``durations``: ("step" | "step_gpu" | "gap", mode number), ("host" | "gpu", 64 × runner + mode number),
    ("gc", generation), ("hook", 0). Keys of ``counts``: ("bs", mode number). Keys of ``sums``: (what, mode number).
    """

    def __init__(self, hello: Mapping[str, Any], now: int) -> None:
        self.hello = hello
        self.start = now
        self.end = now
        modes = hello.get("modes")
        self.mode_names: dict[int, str] = (
            {int(n): str(m) for m, n in modes.items() if isinstance(n, int)} if isinstance(modes, Mapping) else {}
        )
        stages = hello.get("stages")
        self.stages = tuple(str(s) for s in stages) if isinstance(stages, (list, tuple)) else STAGES
        caps = hello.get("caps")
        self.caps = frozenset(caps) if isinstance(caps, (list, tuple)) else frozenset()
        graph = hello.get("graph")
        self.graph: Mapping[str, Any] = graph if isinstance(graph, Mapping) else {}
        self.label = "gpu" if "gpu-events" in self.caps else "host"

        self.inbox = Inbox()
        self.durations: HistBank[tuple[str, int]] = HistBank(Durations)
        self.counts: HistBank[tuple[str, int]] = HistBank(Counts)
        self.sums: TimeBank[tuple[str, int]] = TimeBank()
        self.stage_ns: TimeBank[str] = TimeBank()
        for name in (*self.stages, BUSY):  # so that a row's number is the stage's
            self.stage_ns.row(name)
        self.cause_ns: TimeBank[tuple[int, int]] = TimeBank()
        self.names = Names()
        self.sources = Sources(self.names, ("stage",) if "stage" in self.caps else ())
        self.gaps = Gaps(self.sources)
        self.strip = Strip()

        self.queue: dict[str, int] = {}
        self.stat: Mapping[str, Any] = {}
        self.stat_before: Mapping[str, Any] = {}
        self.last_ct: int | None = None
        self.last_step_at: int | None = None
        self.mode_last: dict[int, int] = {}
        """Mode number → return of its last step, ns."""
        self.speculative = False
        self.unknown_frames = 0
        self.bye: str | None = None
        self.scheduling: Scheduling | None = None

        self._chain = Chain()
        self._by_result = ResultLengths()
        self._by_entry: EntryLengths | None = EntryLengths()
        self._recent = Recent()
        self._gpu_of_step = GpuOfStep()
        self._rows: dict[str, I64] = {}
        self._blocks: dict[tuple[tuple[str, ...], int], I64] = {}
        self._stage_cause = np.array([self.names.code(self._cause_of(s)) for s in self.stages], np.int64)
        self._stage_idle = np.array([s in ("idle", "paused") for s in self.stages], np.bool_)
        self._lost_forwards = 0
        self._cause_table = np.full((MODES, 32), -1, np.int64)

    @staticmethod
    def _cause_of(stage: str) -> str:
        return {"idle": NO_WORK, "paused": PAUSED}.get(stage, stage)

    def mode_name(self, number: int) -> str:
        """SGLang's name of a mode; ``MODE_n`` where the hello has none."""
        return self.mode_names.get(number, f"MODE_{number}" if number != MODES - 1 else "UNKNOWN")

    # --- frames ---------------------------------------------------------------------------------------

    def frame(self, frame: Frame) -> None:
        """Take a frame of the agent; cheap, the work is done in ``advance``.

        Raises:
            WireError: the frame is malformed.
        """
        kind = frame.get("k")
        if kind == "ev":
            if not self.inbox.put(frame):
                self.unknown_frames += 1
        elif kind == "stat":
            ct = frame.get("ct")
            if isinstance(ct, int) and ct >= 0:
                self.last_ct = max(self.last_ct or 0, ct)
            self.stat_before, self.stat = self.stat, frame
        elif kind == "bye":
            self.bye = str(frame.get("why", ""))
        elif not isinstance(kind, str):
            raise WireError("a frame without a kind")
        else:
            self.unknown_frames += 1

    # --- once a tick ----------------------------------------------------------------------------------

    def advance(self, end: int) -> None:
        """Work through everything that became known at or before ``end`` (ns, a whole tick)."""
        if end <= self.end:
            return
        self.end = end
        self.sums.advance(end)
        self.stage_ns.advance(end)
        self.cause_ns.advance(end)
        self.strip.advance(end)
        take = self.inbox.take
        if (stage := take("stage", end)) is not None:
            self._stage(stage)
        if (gc := take("gc", end)) is not None:
            self._gc(gc)
        step = take("step", end)
        if step is not None:
            self._step(step)
        if (result := take("result", end)) is not None:
            self._result(result)
        elif self._by_entry is not None:
            self._took(self._by_entry.add(step, self.sources))
        self._forward(take("forward", end))
        if (queue := take("queue", end)) is not None:
            self.queue = {c: int(v[-1]) for c, v in queue.columns.items()}
        if (got := self.gaps.split(end)) is not None:
            self.cause_ns.add_ticks(self._cause_rows(got.mode, got.cause), got.tick, got.ns)
        self.durations.commit(end)
        self.counts.commit(end)
        self.sources.forget(end)

    def _row(self, what: str, key: I64, bank: HistBank[tuple[str, int]]) -> I64:
        """Bank rows of ``(what, key)``, looked up in a table that fills itself."""
        table = self._rows.get(what)
        if table is None:
            table = self._rows[what] = np.full(3 * MODES, -1, np.int64)
        rows = table[key]
        if int(rows.min()) < 0:
            for k in np.unique(key[rows < 0]).tolist():
                table[k] = bank.row((what, k), trace=what == "step")
            rows = table[key]
        return rows

    def _cause_rows(self, mode: I64, cause: I64) -> I64:
        """Rows of ``cause_ns`` under (mode number, cause number)."""
        n = len(self.names.names)
        if self._cause_table.shape[1] < n:
            self._cause_table = np.full((MODES, 2 * n), -1, np.int64)
        rows: I64 = self._cause_table[mode, cause]
        if int(rows.min()) < 0:
            for m, c in set(zip(mode[rows < 0].tolist(), cause[rows < 0].tolist(), strict=True)):
                self._cause_table[m, c] = self.cause_ns.row((m, c))
            rows = self._cause_table[mode, cause]
        return rows

    def _hist(self, what: str, key: I64, ns: I64) -> None:
        if len(key):
            self.durations.add(self._row(what, key, self.durations), ns)

    def _sum(self, names: tuple[str, ...], key: I64, *amounts: I64) -> None:
        """Add amounts by key (a mode number) to the tick that ends now, one name for each column."""
        if not len(key):
            return
        modes = np.flatnonzero(np.bincount(key))
        table = np.array(amounts)
        # amounts × (row of this mode?) is the sum by mode
        sums = table.sum(axis=1)[None] if len(modes) == 1 else (key == modes[:, None]).astype(np.int64) @ table.T
        for k, of_mode in zip(modes.tolist(), sums, strict=True):
            rows = self._blocks.get((names, k))
            if rows is None:
                rows = self._blocks[names, k] = np.array([self.sums.row((what, k)) for what in names], np.int64)
            self.sums.add_now(rows, of_mode)

    def _stage(self, b: Batch) -> None:
        stage, t0, t1 = b["stage"], b["t0"], b["t1"]
        ok = (stage >= 0) & (stage < len(self.stages)) & (t1 > t0)
        if not ok.all():
            stage, t0, t1 = stage[ok], t0[ok], t1[ok]
        if not len(stage):
            return
        self.stage_ns.add(stage, t0, t1)
        idle = self._stage_idle[stage]
        cause = self._stage_cause[stage]
        mark = int(t1[-1])
        if idle.any():
            self.sources.push("idle", t0[idle], t1[idle], cause[idle])
            kinds = np.array([self.strip.code("paused" if s == "paused" else "idle") for s in self.stages], np.int64)
            self.strip.add(kinds[stage[idle]], t0[idle], t1[idle])
            busy = ~idle
            self.sources.push("stage", t0[busy], t1[busy], cause[busy], mark)
        else:
            self.sources.push("stage", t0, t1, cause, mark)

    def _gc(self, b: Batch) -> None:
        # a collection on another thread holds the GIL too, so it stops the main thread all the same
        code = np.full(len(b), self.names.code(GC), np.int64)
        self.sources.push("gc", b["t0"], b["t1"], code)
        main = b["main"] == 1
        self._hist("gc", np.clip(b["gen"][main], 0, MODES - 1), (b["t1"] - b["t0"])[main])

    def _step(self, b: Batch) -> None:
        mode, tokens, graph = mode_numbers(b["mode"]), b["tokens"], b["graph"]
        self.last_ct = max(self.last_ct or 0, int(b["ct"].max()))
        self.last_step_at = int(b["t1"].max())
        for m in np.flatnonzero(np.bincount(mode)).tolist():
            self.mode_last[m] = int(b["t1"][mode == m][-1])
        self.counts.add(self._row("bs", mode, self.counts), np.maximum(b["bs"], 0))
        known = tokens >= 0
        counted = np.where(known, tokens, 0)
        self._recent.put(b["ct"], mode, counted, b["t0"])
        self._sum(
            ("tokens", "tokens_known", "prefill", "cached", "graph", "eager"),
            mode,
            counted,
            known.astype(np.int64),
            np.maximum(counted - np.maximum(b["decode_tokens"], 0), 0),
            np.maximum(b["cached"], 0),
            (graph == 1).astype(np.int64),
            (graph == 0).astype(np.int64),
        )
        hook = b["hook_ns"]
        hook = hook[hook >= 0]
        self._hist("hook", np.zeros(len(hook), np.int64), hook)

    def _took(self, got: Lengths) -> None:
        if len(got.mode):
            self._hist("step", got.mode, got.end - got.start)
            self.strip.add(self._cells(got.mode), got.start, got.end, "forward" not in self.caps)

    def _cells(self, mode: I64, graph: I64 | None = None) -> I64:
        """Strip codes of modes; ``graph`` as in the forward table."""
        table = self._rows.get("cells")
        if table is None:
            table = np.zeros(2 * MODES, np.int64)
            for number in (*self.mode_names, MODES - 1):
                if 0 <= number < MODES:
                    name = self.mode_name(number)
                    captured = bool(self.graph.get(GRAPHED.get(name, "")))
                    table[number] = self.strip.code(name)
                    table[MODES + number] = self.strip.code(name, captured) if captured else table[number]
            self._rows["cells"] = table
        cells: I64 = table[mode if graph is None else mode + MODES * (graph == 0)]
        return cells

    def _forward(self, b: Batch | None) -> None:
        if b is None:
            if self.label == "gpu":
                self._finish_gpu(EMPTY, EMPTY)
            return
        lost = self.stat.get("lost")
        n = lost.get("forward", 0) if isinstance(lost, Mapping) else 0
        if isinstance(n, int) and n > self._lost_forwards:
            self._lost_forwards = n
            self._chain.cut()
        mode = mode_numbers(b["mode"])
        draft = (b["runner"] == 1).astype(np.int64)
        key = mode + MODES * draft
        t0, t1, graph, ct = b["t0"], b["t1"], b["graph"], b["ct"]
        self._hist("host", key, t1 - t0)
        self._sum(
            ("f_tokens", "f_graph", "f_eager"),
            key,
            np.maximum(b["tokens"], 0),
            (graph == 1).astype(np.int64),
            (graph == 0).astype(np.int64),
        )
        g0, g1, g2 = b["gpu0"], b["gpu1"], b["gpu2"]
        known = (g0 >= 0) & (g1 >= g0)
        if known.any():
            self._hist("gpu", key[known], (g1 - g0)[known])
            self._finish_gpu(ct[known], (g1 - g0)[known])
            after = known & (g2 > g1)
            sampling = np.full(int(after.sum()), self.names.code(SAMPLING), np.int64)
            self.sources.push("sampling", g1[after], g2[after], sampling)
        if self.label == "gpu":
            t0, t1 = g0, g1
        else:
            known = t1 >= t0
        self._spans(t0, t1, mode, draft, graph, known)

    def _finish_gpu(self, ct: I64, ns: I64) -> None:
        done, sums = self._gpu_of_step.add(ct, ns)
        if len(done):
            mode, _, _ = self._recent.find(done)
            self._hist("step_gpu", mode[mode >= 0], sums[mode >= 0])

    def _spans(self, t0: I64, t1: I64, mode: I64, draft: I64, graph: I64, known: Bool) -> None:
        hole = not known.all()
        after_hole = np.cumsum(known)[~known]
        if hole:  # a forward without times: the gaps on both its sides are not known
            if not known.any():
                self._chain.cut()
                return
            t0, t1, mode, draft, graph = (x[known] for x in (t0, t1, mode, draft, graph))
        if len(t0) > 1 and bool(np.any(t0[1:] < t0[:-1])):
            order = np.argsort(t0, kind="stable")
            t0, t1, mode, draft, graph = (x[order] for x in (t0, t1, mode, draft, graph))
        spans = self._chain.add(t0, t1)
        if hole:
            spans.gap[after_hole[after_hole < len(t0)]] = -1
            if not known[-1]:
                self._chain.cut()
        cells = self._cells(mode, graph)
        target = draft == 0
        self.strip.add(cells[target], t0[target], t1[target])
        if not target.all():
            self.strip.add(cells[~target], t0[~target], t1[~target], certain=False)
        self.stage_ns.add(np.full(len(t0), self.stage_ns.row(BUSY), np.int64), spans.busy0, spans.t1)
        gap = spans.gap >= 0
        self._hist("gap", mode[gap], spans.gap[gap])
        real = spans.gap > 0
        self.gaps.add((t0 - spans.gap)[real], t0[real], mode[real])

    def _result(self, b: Batch) -> None:
        self._by_entry = None  # this loop shows results
        self._took(self._by_result.add(b["ct"], b["t"], self._recent, self.sources))
        mode, tokens, _ = self._recent.find(b["ct"])
        accepted = b["accepted"]
        verify = (accepted >= 0) & (mode >= 0)
        if verify.any():
            self.speculative = True
            one = np.ones(int(verify.sum()), np.int64)
            self._sum(("tokens", "tokens_known"), mode[verify], (accepted - tokens)[verify], one)
        finished = b["finished"]
        finished = finished[finished >= 0]
        zero = np.zeros(len(finished), np.int64)
        self._sum(("finished", "finished_known"), zero, finished, zero + 1)
