"""From a recording's entries to a :class:`Timeline`: which table becomes which track."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
from sgtop_agent.wire import STAGES, TABLES
from sgtop_probes.sched import types as sched

from sgtop_core.recording import kernels as raw
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.envelope import KIND as PROBE
from sgtop_core.recording.envelope import from_frame

from . import gpu_counters
from .timeline import CPU, GPU, I64, Counter, Group, Mark, Names, Timeline, Track, column, spans

RUNNERS = ("", "draft ")
_QUEUE = (
    ("running", "requests"),
    ("waiting", "requests"),
    ("grammar", "requests"),
    ("retracted", "requests"),
)


@dataclass(slots=True)
class _Source:
    """What one source sent: its hello and its tables' frames."""

    hello: Mapping[str, Any] = field(default_factory=dict)
    tables: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    kernels: list[Mapping[str, Any]] = field(default_factory=list)

    def table(self, name: str, *, lo: int, hi: int) -> dict[str, I64]:
        """All rows of a table that overlap lo..hi, as columns."""
        frames = self.tables.get(name, [])
        names = list(TABLES[name])
        if not frames:
            return {c: np.empty(0, np.int64) for c in names}
        cols = {c: np.concatenate([column(f, c) for f in frames]) for c in names}
        a, b = cols.get("t0", cols.get("t")), cols.get("t1", cols.get("t"))
        if a is None or b is None:
            return cols
        keep = (b >= lo) & (a <= hi)
        return cols if bool(keep.all()) else {c: v[keep] for c, v in cols.items()}


@dataclass(slots=True)
class Gathered:
    """Entries sorted by source, ready for :func:`build`."""

    sources: dict[str, _Source] = field(default_factory=dict)
    sched: list[sched.SchedBatch] = field(default_factory=list)
    names: raw.Names = field(default_factory=raw.Names)
    marks: list[Mark] = field(default_factory=list)
    gpus: list[tuple[int, Sequence[Mapping[str, Any]]]] = field(default_factory=list)
    """(ns, the fields of each GPU) of every reading."""
    events: int = 0
    last_ns: int = 0


def gather(entries: Iterable[Entry], *, until_ns: int | None = None, max_events: int | None = None) -> Gathered:
    """Take entries in, up to a time or a number of events; ``last_ns`` says how far it came."""
    out = Gathered()
    for source, frame, t in entries:
        if until_ns is not None and t > until_ns + 2_000_000_000:
            break
        if max_events is not None and out.events > max_events:
            break
        out.last_ns = max(out.last_ns, t)
        kind = frame.get("k")
        if kind == "hello":
            out.sources.setdefault(source, _Source()).hello = frame
        elif kind == "ev" and frame.get("e") in TABLES:
            out.sources.setdefault(source, _Source()).tables.setdefault(frame["e"], []).append(frame)
            if frame["e"] not in ("result", "queue"):
                out.events += int(frame["n"])
        elif kind == raw.KIND and frame.get("e") == raw.TABLE:
            out.sources.setdefault(source, _Source()).kernels.append(frame)
            out.events += int(frame["n"])
        elif kind == "reply":
            out.names.take(source, frame)
        elif kind == "set" and frame.get("what") == "gpus":
            out.gpus.append((t, frame["x"]))
        elif kind == PROBE and frame.get("e") == sched.SchedBatch.__name__:
            batch = from_frame(frame, sched.SchedBatch)
            out.sched.append(batch)
            out.events += len(batch)
        elif kind in ("note", "lost"):
            text = str(frame.get("text") or f"the recorder lost {frame.get('n')} frames")
            out.marks.append(Mark(t, source, str(frame.get("level", "info")), str(kind), text))
    return out


def build(got: Gathered, *, lo: int, hi: int, marks: Sequence[Mark] = (), title: str = "") -> Timeline:
    """The timeline of what was gathered, between ``lo`` and ``hi`` ns."""
    names = Names()
    groups: list[Group] = []
    tracks: list[Track] = []
    counters: list[Counter] = []
    offset: int | None = None
    tids: dict[int, str] = {}
    for label, s in sorted(got.sources.items()):
        h = s.hello
        groups.append(Group(label, h.get("pid"), _about(h)))
        clock = h.get("clock")
        if offset is None and isinstance(clock, Mapping):
            offset = int(clock["real_ns"]) - int(clock["mono_ns"])
        if isinstance(h.get("tid"), int):
            tids[h["tid"]] = label
        tracks += _rank_tracks(label, s, names, lo, hi)
        tracks += _kernel_tracks(label, s, got.names, names, lo, hi)
        counters += _queue_counters(label, s, lo, hi)
    counters += gpu_counters.counters(got.gpus, lo, hi)
    tracks += _sched_tracks(got.sched, tids, names, lo, hi)
    kept = sorted((m for m in (*got.marks, *marks) if lo <= m.t <= hi), key=lambda m: m.t)
    order = {GPU: 0, CPU: 1}
    rank = {k: i for i, k in enumerate(("gpu-forward", "kernel", "forward", "step", "stage", "gc", "sched"))}
    tracks = [t for t in tracks if len(t.spans)]
    tracks.sort(key=lambda t: (order[t.area], t.group, rank.get(t.kind, 9), t.title))
    return Timeline(lo, hi, offset, names.all(), tuple(groups), tuple(tracks), tuple(counters), tuple(kept), title)


def _about(h: Mapping[str, Any]) -> str:
    parts = [
        PurePath(str(h.get("model") or "")).name,
        f"SGLang {h['sglang']}" if h.get("sglang") else "",
        str(h.get("device") or ""),
    ]
    return ", ".join(p for p in parts if p)


def _rank_tracks(label: str, s: _Source, names: Names, lo: int, hi: int) -> list[Track]:
    modes = s.hello.get("modes")
    mode_names = {v: k for k, v in modes.items()} if isinstance(modes, Mapping) else {}
    stage_names = s.hello.get("stages") or STAGES

    def mode(m: int) -> str:
        return str(mode_names.get(m, f"MODE_{m}"))

    captured = s.hello.get("graph")
    graphs = isinstance(captured, Mapping) and any(captured.get(k) for k in ("decode", "prefill", "verify", "draft"))

    def graph(g: int) -> str:
        # Where no graph was captured (a CPU server), "eager" says nothing.
        return {1: " graph", 0: " eager"}.get(g, "") if graphs else ""

    st = s.table("step", lo=lo, hi=hi)
    fw = s.table("forward", lo=lo, hi=hi)
    sg = s.table("stage", lo=lo, hi=hi)
    gc = s.table("gc", lo=lo, hi=hi)
    step = spans(
        st["t0"], st["t1"], names.each((st["mode"], st["bs"]), lambda m, bs: f"step[{mode(m)} bs={bs}]"),
        step=st["ct"], batch=st["bs"], tokens=st["tokens"], cached=st["cached"], graph=st["graph"],
    )  # fmt: skip
    named = names.each((fw["runner"], fw["mode"], fw["graph"]), lambda r, m, g: RUNNERS[r == 1] + mode(m) + graph(g))
    args = {"step": fw["ct"], "batch": fw["bs"], "tokens": fw["tokens"], "graph": fw["graph"]}
    host = spans(fw["t0"], fw["t1"], named, **args)
    known = (fw["gpu0"] >= 0) & (fw["gpu1"] >= fw["gpu0"])
    gpu = spans(fw["gpu0"][known], fw["gpu1"][known], named[known], **{k: v[known] for k, v in args.items()})
    after = known & (fw["gpu2"] > fw["gpu1"])
    sampling = spans(
        fw["gpu1"][after], fw["gpu2"][after], np.full(int(after.sum()), names["sampling, copies"]), step=fw["ct"][after]
    )
    stage = spans(
        sg["t0"], sg["t1"],
        names.each((sg["stage"],), lambda i: str(stage_names[i]) if 0 <= i < len(stage_names) else f"stage {i}"),
    )  # fmt: skip
    collections = spans(
        gc["t0"], gc["t1"], names.each((gc["gen"],), lambda g: f"gc generation {g}"), main_thread=gc["main"],
        collected=gc["collected"],
    )  # fmt: skip
    # On a server without a GPU the host's forwards are the only ones: they take the first row.
    return [
        Track(label, "gpu-forward", "forwards (GPU)", GPU, gpu),
        Track(label, "gpu-sampling", "after forwards (GPU)", GPU, sampling),
        Track(label, "forward", "forwards (host)", CPU if len(gpu) else GPU, host),
        Track(label, "step", "steps", CPU, step),
        Track(label, "stage", "stages", CPU, stage),
        Track(label, "gc", "gc", CPU, collections),
    ]


def _kernel_tracks(label: str, s: _Source, known: raw.Names, names: Names, lo: int, hi: int) -> list[Track]:
    if not s.kernels:
        return []
    c = {name: np.concatenate([column(f, name) for f in s.kernels]) for name in raw.COLUMNS.values()}
    keep = (c["t1"] >= lo) & (c["t0"] <= hi)
    c = {name: v[keep] for name, v in c.items()}
    named = names.each((c["name"],), lambda a: known.get(label, a))
    step = _step_of(s.table("forward", lo=lo, hi=hi), c["t0"])
    return [
        Track(label, "kernel", f"kernels, stream {stream}", GPU, spans(
            c["t0"][of], c["t1"][of], named[of], step=step[of], stream=c["stream"][of],
            graph=np.where(c["graph"][of] > 0, 1, 0), bytes=np.where(c["bytes"][of] > 0, c["bytes"][of], -1),
        ))
        for stream in np.unique(c["stream"]).tolist()
        for of in (c["stream"] == stream,)
    ]  # fmt: skip


def _step_of(forwards: Mapping[str, I64], t: I64) -> I64:
    """Step whose forward ran on the GPU at each time, -1 where none did."""
    known = forwards["gpu0"] >= 0
    begin, end, ct = (forwards[c][known] for c in ("gpu0", "gpu2", "ct"))
    if not len(begin):
        return np.full(len(t), -1, dtype=np.int64)
    order = np.argsort(begin, kind="stable")
    begin, end, ct = begin[order], end[order], ct[order]
    at = np.maximum(np.searchsorted(begin, t, "right") - 1, 0)
    return np.where((t >= begin[at]) & (t <= end[at]), ct[at], -1)


def _queue_counters(label: str, s: _Source, lo: int, hi: int) -> list[Counter]:
    q = s.table("queue", lo=lo, hi=hi)
    if not len(q["t"]):
        return []

    def known(v: I64) -> Any:
        return np.where(v == -1, np.nan, v.astype(np.float64))

    out = [Counter(label, name, unit, q["t"], known(q[name])) for name, unit in _QUEUE]
    total = known(q["kv_total"])
    used = known(q["kv_used"])
    with np.errstate(divide="ignore", invalid="ignore"):
        out.append(Counter(label, "kv_used", "%", q["t"], np.where(total > 0, 100 * used / total, np.nan)))
    age = np.where(q["oldest_ns"] == -1, np.nan, q["oldest_ns"] / 1e9)
    out.append(Counter(label, "oldest_waiting", "s", q["t"], age))
    return [c for c in out if not bool(np.isnan(c.v).all())]


def _sched_tracks(
    batches: Sequence[sched.SchedBatch], tids: Mapping[int, str], names: Names, lo: int, hi: int
) -> list[Track]:
    by_tid: dict[int, list[tuple[int, int, int, int, int, int]]] = {}
    for b in batches:
        for t0, t1, tid, kind, pid, comm, cpu, wait in zip(
            b.t0, b.t1, b.tid, b.kind, b.who_pid, b.who_comm, b.cpu, b.wait, strict=True
        ):
            if t1 < lo or t0 > hi:
                continue
            who = b.comms[comm] if 0 <= comm < len(b.comms) else ""
            by_tid.setdefault(tid, []).append((t0, t1, names[_sched_name(kind, pid, who)], pid, cpu, wait))
    out = []
    for tid, rows in by_tid.items():
        t0, t1, name, pid, cpu, wait = (np.array(c, dtype=np.int64) for c in zip(*rows, strict=True))
        label = tids.get(tid, f"thread {tid}")
        out.append(
            Track(label, "sched", "off CPU: who ran", CPU, spans(t0, t1, name, pid=pid, cpu=cpu, waited_ns=wait))
        )
    return out


def _sched_name(kind: int, pid: int, comm: str) -> str:
    what = sched.KINDS[kind] if 0 <= kind < len(sched.KINDS) else f"kind {kind}"
    if kind == sched.SLEPT:
        return what
    who = comm or {sched.IDLE: "nobody (held back)", sched.UNKNOWN: "unknown"}.get(pid, f"pid {pid}")
    return f"{what}: {who}"
