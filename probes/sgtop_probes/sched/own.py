"""A thread's own switch records (PERF_RECORD_SWITCH): when it left the CPU and when it came back, not who ran instead.

Level C lives on them. Level A asks for them where the tracepoint misses switches: some kernels drop the tracepoints of
a CPU's idle task (seen on a 6.18 guest, on one CPU of two), so that a thread which the idle task made room for never
seems to come back. These records are written by the thread that comes, and are always there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping

from . import perf
from .rings import Waiter, pages_for_threads, with_descriptors

_SAMPLE_TYPE = perf.SAMPLE_TID | perf.SAMPLE_TIME | perf.SAMPLE_CPU
_FLAGS = perf.FLAG_SAMPLE_ID_ALL | perf.FLAG_CONTEXT_SWITCH | perf.FLAG_EXCLUDE_KERNEL
_BODY = struct.Struct("<IIQI4x")

Event = tuple[int, int, int, int, int]
"""(time, 1 in or 0 out, tid, cpu, preempted)"""


def parse(data: bytes, out: list[Event]) -> int:
    """Append the switches in a ring's bytes; the number of lost records. Anything else is passed over."""
    lost = 0
    for type_, misc, body, end in perf.records(data):
        if type_ == perf.RECORD_SWITCH and end - body >= _BODY.size:
            _pid, tid, t, cpu = _BODY.unpack_from(data, body)
            is_out = misc & perf.MISC_SWITCH_OUT
            out.append((t, 0 if is_out else 1, tid, cpu, 1 if misc & perf.MISC_SWITCH_OUT_PREEMPT else 0))
        else:
            lost += perf.lost_in(type_, data, body, end)
    return lost


def open_ring(tid: int, pages: int) -> perf.Ring:
    """The ring of one thread, recording.

    Raises:
        ProcessLookupError: the thread is gone.
        OSError: perf_event_open or the ring's memory is refused.
    """
    fd = with_descriptors(
        lambda: perf.open_event(
            perf.TYPE_SOFTWARE,
            perf.SW_DUMMY,
            pid=tid,
            cpu=-1,
            sample_type=_SAMPLE_TYPE,
            flags=_FLAGS,
            watermark=pages * perf.PAGE // 2,
        )
    )
    ring = perf.Ring(fd, pages)
    perf.enable(fd)
    return ring


class Returns:
    """The switch-ins of some threads, recorded from ``start`` on."""

    def __init__(self, waiter: Waiter) -> None:
        """``waiter``: is woken when one of the rings is half full."""
        self._waiter = waiter
        self._rings: dict[int, perf.Ring] = {}
        self._tids: dict[int, int] = {}
        self.started = False
        self.lost = 0

    def watch(self, tids: Mapping[int, int]) -> None:
        """Exactly these from now on: tid in sgtop's namespace → tid as the caller wants it back."""
        self._tids = dict(tids)
        if self.started:
            self._sync(self._tids)

    def start(self) -> None:
        """Record. What is refused stays unrecorded: the caller has the tracepoints at least."""
        if not self.started:
            self.started = True
            self._sync(self._tids)

    def _sync(self, tids: Collection[int]) -> None:
        for tid in [t for t in self._rings if t not in tids]:
            ring = self._rings.pop(tid)
            self._waiter.remove(ring)
            ring.close()
        pages = pages_for_threads(len(tids), os.cpu_count() or 1)
        for tid in [t for t in tids if t not in self._rings]:
            try:
                self._rings[tid] = open_ring(tid, pages)
            except OSError:
                continue
            self._waiter.add(self._rings[tid])

    def read(self) -> Iterator[tuple[int, int, int]]:
        """(time, tid, cpu) of each switch-in since the call before, a thread at a time."""
        for own, ring in self._rings.items():
            events: list[Event] = []
            self.lost += parse(ring.read(), events)
            for time, is_in, _tid, cpu, _preempted in events:
                if is_in:
                    yield time, self._tids[own], cpu

    def close(self) -> None:
        """Close all events."""
        for ring in self._rings.values():
            ring.close()
        self._rings = {}
