"""A Perfetto trace decodes with Perfetto's own protobuf and holds every event at its time, nested as it was."""

from __future__ import annotations

import io
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from sgtop_agent import wire
from sgtop_core.export import perfetto
from sgtop_core.export.build import build, gather
from sgtop_core.export.timeline import CPU, Group, Mark, Spans, Timeline, Track, column, lanes, spans
from sgtop_core.recording import chunk
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.envelope import to_frame
from sgtop_core.recording.kernels import kernels_frame
from sgtop_probes.sched import types as sched

from tests.recording import frames, recordings

Event = tuple[str, str, str, int, int, int, tuple[tuple[str, Any], ...]]
"""(process, track, name, begin, end, depth, arguments)"""


def decode(raw: bytes) -> tuple[list[Event], list[tuple[str, str, int, float]], list[tuple[str, str, int]]]:
    """(slices, counter values, instants) of a trace, read as trace_processor would."""
    trace = pb.Trace()
    trace.ParseFromString(raw)
    names: dict[int, str] = {}
    tracks: dict[int, Any] = {}
    open_slices: dict[int, list[tuple[str, int, tuple[tuple[str, Any], ...]]]] = {}
    slices: list[Event] = []
    counters: list[tuple[str, str, int, float]] = []
    instants: list[tuple[str, str, int]] = []
    for p in trace.packet:
        assert p.trusted_packet_sequence_id
        names.update({n.iid: n.name for n in p.interned_data.event_names})
        if p.HasField("track_descriptor"):
            assert p.track_descriptor.uuid not in tracks
            tracks[p.track_descriptor.uuid] = p.track_descriptor
    by_time = sorted((p for p in trace.packet if p.HasField("track_event")), key=lambda p: p.timestamp)
    for p in by_time:
        assert p.timestamp_clock_id == pb.BUILTIN_CLOCK_MONOTONIC
        e = p.track_event
        track = tracks[e.track_uuid]
        process = tracks[track.parent_uuid].process.process_name.split(" (")[0]
        title = track.name.split(" (2)")[0]
        name = names[e.name_iid] if e.name_iid else e.name
        if e.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            args = tuple((a.name, a.int_value) for a in e.debug_annotations)
            open_slices.setdefault(e.track_uuid, []).append((name, p.timestamp, args))
        elif e.type == pb.TrackEvent.TYPE_SLICE_END:
            stack = open_slices[e.track_uuid]
            name, begin, args = stack.pop()
            slices.append((process, title, name, begin, p.timestamp, len(stack), args))
        elif e.type == pb.TrackEvent.TYPE_COUNTER:
            counters.append((process, track.name, p.timestamp, e.double_counter_value))
        else:
            instants.append((process, name, p.timestamp))
    assert not any(open_slices.values()), "a slice that never ends"
    return slices, counters, instants


@pytest.fixture(scope="module")
def all_entries() -> list[Entry]:
    return recordings.entries(2, 2.0)


def test_every_event_and_its_time(all_entries: list[Entry]) -> None:
    got = gather(all_entries)
    lo, hi = all_entries[0].mono_ns, all_entries[-1].mono_ns
    out = io.BytesIO()
    perfetto.write(build(got, lo=lo, hi=hi, marks=[Mark(lo + 5, "TP0", "warning", "an alert", "why")]), out)
    slices, counters, instants = decode(out.getvalue())

    want: Counter[tuple[str, str, int, int]] = Counter()
    figures: Counter[tuple[str, int]] = Counter()
    for source, frame, _ in all_entries:
        if frame["k"] != "ev":
            continue
        c = {k: column(frame, k).tolist() for k in frame["c"]}
        table = frame["e"]
        if table == "queue":
            figures.update((source, t) for t in c["t"])
        title = {"step": "steps", "stage": "stages", "forward": "forwards (host)", "gc": "gc"}.get(table)
        if title:
            want.update((source, title, a, b) for a, b in zip(c["t0"], c["t1"], strict=True))
        if table == "forward":
            want.update((source, "forwards (GPU)", a, b) for a, b in zip(c["gpu0"], c["gpu1"], strict=True))
            want.update((source, "after forwards (GPU)", a, b) for a, b in zip(c["gpu1"], c["gpu2"], strict=True))
    assert Counter((p, t, a, b) for p, t, _, a, b, _, _ in slices) == want
    assert Counter((p, t) for p, name, t, _ in counters if name == "running") == figures
    assert instants == [("TP0", "an alert", lo + 5)]

    steps = [s for s in slices if s[1] == "steps" and s[0] == "TP0"]
    decode_step = next(s for s in steps if s[2] == "step[DECODE bs=32]")
    assert dict(decode_step[6])["batch"] == 32
    assert [dict(s[6])["step"] for s in sorted(steps, key=lambda s: s[3])] == list(range(200))


def test_clocks_line_up(all_entries: list[Entry]) -> None:
    out = io.BytesIO()
    lo, hi = all_entries[0].mono_ns, all_entries[-1].mono_ns
    perfetto.write(build(gather(all_entries), lo=lo, hi=hi), out)
    trace = pb.Trace()
    trace.ParseFromString(out.getvalue())
    clocks = {c.clock_id: c.timestamp for c in trace.packet[0].clock_snapshot.clocks}
    h = frames.hello(0)["clock"]
    assert clocks[pb.BUILTIN_CLOCK_REALTIME] - clocks[pb.BUILTIN_CLOCK_MONOTONIC] == h["real_ns"] - h["mono_ns"]


def test_only_the_range_that_was_asked_for(all_entries: list[Entry]) -> None:
    lo = frames.START + 500_000_000
    t = build(gather(all_entries, until_ns=lo + 200_000_000), lo=lo, hi=lo + 200_000_000)
    steps = next(x for x in t.tracks if x.kind == "step").spans
    assert 18 <= len(steps) <= 22
    assert bool((steps.t1 >= lo).all())
    assert bool((steps.t0 <= lo + 200_000_000).all())


def test_who_ran() -> None:
    batch = sched.SchedBatch(
        "A", 10, 5, t0=array("q", [100, 200]), t1=array("q", [150, 250]), tid=array("q", [4000, 4000]),
        kind=array("q", [sched.PREEMPTED, sched.SLEPT]), who_pid=array("q", [812, -1]), who_comm=array("q", [0, 1]),
        cpu=array("q", [3, 3]), wait=array("q", [50, 0]), first=array("q", [1, 1]), comms=("dockerd", ""),
    )  # fmt: skip
    got = gather([Entry("TP0", frames.hello(0), 0), Entry("sched", to_frame(batch), 300)])
    out = io.BytesIO()
    perfetto.write(build(got, lo=0, hi=1000), out)
    slices, _, _ = decode(out.getvalue())
    assert [s[:5] for s in slices] == [
        ("TP0", "off CPU: who ran", "preempted: dockerd", 100, 150),
        ("TP0", "off CPU: who ran", "slept", 200, 250),
    ]
    assert dict(slices[0][6]) == {"pid": 812, "cpu": 3, "waited_ns": 50}


SPAN = st.tuples(st.integers(0, 60), st.integers(0, 20))


@given(st.lists(SPAN, max_size=40))
def test_any_spans_keep_their_times_and_nest(pairs: list[tuple[int, int]]) -> None:
    """Whatever overlaps, every span comes back; in a lane spans are apart or inside one another."""
    t0 = np.array([a for a, _ in pairs], dtype=np.int64)
    t1 = t0 + np.array([n for _, n in pairs], dtype=np.int64)
    s = spans(t0, t1, np.zeros(len(pairs), np.int64))
    lane = lanes(s)
    for k in set(lane.tolist()):
        inside = [(int(a), int(b)) for a, b in zip(s.t0[lane == k], s.t1[lane == k], strict=True)]
        for i, (a, b) in enumerate(inside):
            for c, d in inside[i + 1 :]:
                assert c >= b or d <= b, "two spans of a lane overlap and neither holds the other"
                assert c >= a
    timeline = Timeline(0, 100, None, ("x",), (Group("TP0", 1),), (Track("TP0", "k", "t", CPU, s),), (), ())
    out = io.BytesIO()
    perfetto.write(timeline, out)
    slices, _, _ = decode(out.getvalue())
    assert Counter((a, b) for _, _, _, a, b, _, _ in slices) == Counter((a, a + n) for a, n in pairs)


def test_a_streamed_file_is_one_trace(tmp_path: Path, all_entries: list[Entry]) -> None:
    empty = Timeline(0, 1, None, (), (), (Track("x", "k", "t", CPU, spans(*[np.empty(0, np.int64)] * 3)),), (), ())
    with (tmp_path / "x").open("wb") as f:
        perfetto.write(empty, f)
    trace = pb.Trace()
    trace.ParseFromString((tmp_path / "x").read_bytes())
    assert len(trace.packet) == 1
    assert isinstance(empty.tracks[0].spans, Spans)


def test_kernels_have_their_names_streams_and_steps() -> None:
    """Raw kernels of a window, through the codec of a recording."""
    columns = {
        "start": np.array([5_000, 5_900, 6_500]), "end": np.array([5_800, 6_400, 6_900]),
        "name": np.array([0x1000, 0x2000, -((1 << 8) | 1)]), "stream": np.array([7, 7, 9]),
        "graph": np.array([3, 3, 0]), "bytes": np.array([0, 0, 4096]),
    }  # fmt: skip
    forward = {key: [1] for key in wire.TABLES["forward"]}
    forward.update(ct=[42], t0=[4_000], t1=[4_500], gpu0=[4_900], gpu1=[6_450], gpu2=[6_450], mode=[2], runner=[0])
    names = {"0x1000": "_ZN2at6native13reduce_kernelEv", "0x2000": "my_triton_kernel"}
    recorded = chunk.decode(
        chunk.encode(
            [
                Entry("TP0", frames.hello(0), 1),
                Entry("TP0", wire.unpack(wire.pack(wire.events("forward", forward))[4:]), 7_000),
                Entry("TP0", kernels_frame(columns), 7_000),
                Entry("TP0", {"k": "reply", "id": 1, "ok": True, "result": {"names": names}}, 7_100),
            ]
        )
    ).entries
    out = io.BytesIO()
    perfetto.write(build(gather(recorded), lo=0, hi=10_000), out)
    slices, _, _ = decode(out.getvalue())
    kernels = {s[2]: s for s in slices if "stream" in s[1]}
    assert set(kernels) == {"reduce_kernel", "my_triton_kernel", "memcpy HtoD"}
    assert kernels["my_triton_kernel"][1:5] == ("kernels, stream 7", "my_triton_kernel", 5_900, 6_400)
    assert dict(kernels["my_triton_kernel"][6]) == {"step": 42, "stream": 7, "graph": 1}
    assert dict(kernels["memcpy HtoD"][6]) == {"stream": 9, "graph": 0, "bytes": 4096}
