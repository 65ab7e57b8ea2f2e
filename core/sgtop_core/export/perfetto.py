"""A timeline as a Perfetto trace, for ui.perfetto.dev or trace_processor: ranks as processes, a track a row.

Made with the ``perfetto`` package's own protobuf classes and streaming writer. Times stay CLOCK_MONOTONIC (the trace
carries a clock snapshot, so that other traces of the host line up); names are interned.
"""

from __future__ import annotations

from typing import IO, Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from .timeline import Timeline, Track, lanes

SEQUENCE = 1
_MONOTONIC = pb.BUILTIN_CLOCK_MONOTONIC
_NEEDS = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_CLEARED = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


class _Writer:
    def __init__(self, timeline: Timeline, out: IO[bytes]) -> None:
        self.t = timeline
        self.builder: Any = StreamingTraceProtoBuilder(out)
        self._uuid = 0
        self._processes: dict[str, int] = {}

    def packet(self, t: int | None = None) -> Any:
        p = self.builder.create_packet()
        p.trusted_packet_sequence_id = SEQUENCE
        if t is not None:
            p.timestamp = t
            p.timestamp_clock_id = _MONOTONIC
            p.sequence_flags = _NEEDS
        return p

    def send(self, p: Any) -> None:
        self.builder.write_packet(p)

    def uuid(self) -> int:
        self._uuid += 1
        return self._uuid

    def head(self) -> None:
        """Clocks and the table of names."""
        p = self.packet()
        p.sequence_flags = _CLEARED
        p.clock_snapshot.primary_trace_clock = _MONOTONIC
        start = self.t.start_ns
        for clock, value in (
            (_MONOTONIC, start),
            (pb.BUILTIN_CLOCK_BOOTTIME, start),  # its distance is not recorded: the host's suspends do not matter here
            *(
                ((pb.BUILTIN_CLOCK_REALTIME, start + self.t.real_offset_ns),)
                if self.t.real_offset_ns is not None
                else ()
            ),
        ):
            c = p.clock_snapshot.clocks.add()
            c.clock_id, c.timestamp = clock, value
        for i, name in enumerate(self.t.names):
            p.interned_data.event_names.add(iid=i + 1, name=name)
        self.send(p)

    def process(self, label: str) -> int:
        """Uuid of the process track of a group."""
        if label in self._processes:
            return self._processes[label]
        u = self._processes[label] = self.uuid()
        g = next((g for g in self.t.groups if g.label == label), None)
        p = self.packet()
        d = p.track_descriptor
        d.uuid = u
        # Perfetto needs a pid for a process; a group without one gets a number that no process has.
        d.process.pid = g.pid if g is not None and g.pid is not None else 2**30 + u
        d.process.process_name = f"{label} ({g.note})" if g is not None and g.note else label
        d.child_ordering = pb.TrackDescriptor.EXPLICIT
        self.send(p)
        return u

    def track(self, group: str, title: str, rank: int) -> int:
        u = self.uuid()
        p = self.packet()
        d = p.track_descriptor
        d.uuid, d.parent_uuid, d.name, d.sibling_order_rank = u, self.process(group), title, rank
        # Without this, Perfetto would merge the lanes of one title into one track and with it their nesting.
        d.sibling_merge_behavior = pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
        self.send(p)
        return u

    def spans(self, track: Track, rank: int) -> None:
        s = track.spans
        lane = lanes(s)
        for k in range(int(lane.max()) + 1 if len(lane) else 0):
            u = self.track(track.group, track.title if k == 0 else f"{track.title} ({k + 1})", rank)
            rows = np.flatnonzero(lane == k)
            ends: list[int] = []
            args = [(name, v[rows].tolist()) for name, v in s.args.items()]
            columns = (s.t0[rows].tolist(), s.t1[rows].tolist(), s.name[rows].tolist())
            for i, (a, b, name) in enumerate(zip(*columns, strict=True)):
                while ends and ends[-1] <= a:
                    self.end(u, ends.pop())
                p = self.packet(a)
                e = p.track_event
                e.type, e.track_uuid, e.name_iid = pb.TrackEvent.TYPE_SLICE_BEGIN, u, name + 1
                e.categories.append(track.kind)
                for arg, values in args:
                    if values[i] != -1:
                        e.debug_annotations.add(name=arg, int_value=values[i])
                self.send(p)
                ends.append(b)
            while ends:
                self.end(u, ends.pop())

    def end(self, u: int, t: int) -> None:
        p = self.packet(t)
        p.track_event.type, p.track_event.track_uuid = pb.TrackEvent.TYPE_SLICE_END, u
        self.send(p)

    def counters(self) -> None:
        for c in self.t.counters:
            u = self.uuid()
            p = self.packet()
            d = p.track_descriptor
            d.uuid, d.parent_uuid, d.name, d.sibling_order_rank = u, self.process(c.group), c.name, 100
            d.counter.unit_name = c.unit
            self.send(p)
            for t, v in zip(c.t.tolist(), c.v.tolist(), strict=True):
                if np.isnan(v):
                    continue
                p = self.packet(t)
                e = p.track_event
                e.type, e.track_uuid, e.double_counter_value = pb.TrackEvent.TYPE_COUNTER, u, v
                self.send(p)

    def marks(self) -> None:
        tracks: dict[str, int] = {}
        for m in self.t.marks:
            if m.group not in tracks:
                tracks[m.group] = self.track(m.group, "alerts and notes", -1)
            p = self.packet(m.t)
            e = p.track_event
            e.type, e.track_uuid, e.name = pb.TrackEvent.TYPE_INSTANT, tracks[m.group], m.name
            e.categories.append(m.severity)
            if m.text:
                e.debug_annotations.add(name="text", string_value=m.text)
            self.send(p)


def write(timeline: Timeline, out: IO[bytes]) -> None:
    """Write ``timeline`` to ``out`` as a Perfetto trace."""
    w = _Writer(timeline, out)
    w.head()
    for g in timeline.groups:
        w.process(g.label)
    w.marks()
    for i, track in enumerate(timeline.tracks):
        w.spans(track, i)
    w.counters()
