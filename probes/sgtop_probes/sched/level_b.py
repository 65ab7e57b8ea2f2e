"""Level B: a switch record of every CPU, for every task of the host; needs no tracefs.

Who ran instead (by pid, the name from /proc), preempted or not; not how long a woken thread waited. Needs CAP_PERFMON
or perf_event_paranoid ≤ 0. There is no filter in the kernel: each switch of the host is copied and walked, so that a
host with very many switches is too dear for it (``too_dear``), and level C is better there.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from . import perf
from .exact import Timeline
from .intervals import Task, Tracker
from .level_a import MARGIN_NS
from .names import Names, in_initial_pid_namespace
from .rings import Waiter, pages_for, with_descriptors
from .side import Side, online_cpus
from .threads import WatchList
from .types import Needs, Rows, SchedBatch, Watched

_SAMPLE_TYPE = perf.SAMPLE_TID | perf.SAMPLE_TIME | perf.SAMPLE_CPU
_FLAGS = perf.FLAG_SAMPLE_ID_ALL | perf.FLAG_CONTEXT_SWITCH | perf.FLAG_EXCLUDE_KERNEL
RECORD = struct.Struct("<IHHIIIIQI4x")
"""type, misc, size, other's pid, other's tid, own pid, own tid, time, cpu."""

DEAR_SHARE = 0.01
"""Of one core: above it for ``DEAR_NS`` the level calls itself too dear."""
DEAR_NS = 5_000_000_000

Event = tuple[int, int, int, int, int, int, int]
"""(time, cpu, tid out, its pid, preempted, tid in, its pid)"""


def parse(data: bytes, out: list[Event]) -> int:
    """Append the switches in a ring's bytes; the number of lost records. Anything else is passed over."""
    lost = 0
    size = RECORD.size
    if len(data) % size == 0:
        good: list[Event] = []
        for type_, misc, n, opid, otid, pid, tid, t, cpu in RECORD.iter_unpack(data):
            if n != size or type_ != perf.RECORD_SWITCH_CPU_WIDE:
                break
            if misc & perf.MISC_SWITCH_OUT:
                good.append((t, cpu, tid, pid, misc & perf.MISC_SWITCH_OUT_PREEMPT, otid, opid))
        else:
            out += good
            return 0
    for type_, misc, body, end in perf.records(data):
        if type_ == perf.RECORD_SWITCH_CPU_WIDE and end - body == size - 8:
            _t, _m, _n, opid, otid, pid, tid, t, cpu = RECORD.unpack_from(data, body - 8)
            if misc & perf.MISC_SWITCH_OUT:
                out.append((t, cpu, tid, pid, misc & perf.MISC_SWITCH_OUT_PREEMPT, otid, opid))
        else:
            lost += perf.lost_in(type_, data, body, end)
    return lost


class LevelB:
    """As ``types.SchedSource``."""

    level = "B"

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        every_thread: bool = False,
        pages: int | None = None,
        needs: Needs | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Open one event a CPU.

        Raises:
            OSError: perf_event_open refused, or the rings need more locked memory than allowed.
        """
        self._clock = clock
        self.needs = needs
        self._namespace = not in_initial_pid_namespace()
        self._names = Names()
        self._list = WatchList(watched, every_thread)
        self._tracker = Tracker(self._resolve, self._split)
        self._tracker.watch({t: t for t in self._list.tids})
        self._lines: dict[int, Timeline] = {}
        self._rings: list[perf.Ring] = []
        self._waiter = Waiter()
        self._held: list[Event] = []
        self._dear_since = 0
        self._last = clock()
        self.lost = 0
        self.too_dear = False
        """It costs more than it should on this host."""
        cpus = online_cpus()
        self._pages = pages or pages_for(len(cpus))
        try:
            for cpu in cpus:
                with_descriptors(lambda cpu=cpu: self._open_cpu(cpu))  # type: ignore[misc]
            for ring in self._rings:
                perf.enable(ring.fd)
        except BaseException:
            self.close()
            raise
        self._side = Side(watched)

    def _open_cpu(self, cpu: int) -> None:
        try:
            fd = perf.open_event(
                perf.TYPE_SOFTWARE,
                perf.SW_DUMMY,
                pid=-1,
                cpu=cpu,
                sample_type=_SAMPLE_TYPE,
                flags=_FLAGS,
                watermark=self._pages * perf.PAGE // 2,
            )
        except OSError as e:
            if e.errno == errno.ENODEV:
                return
            raise
        ring = perf.Ring(fd, self._pages)
        self._rings.append(ring)
        self._waiter.add(ring)

    def _resolve(self, tid: int, comm: bytes) -> tuple[int, str]:
        # Inside a pid namespace 0 is the idle task or any task that the namespace does not show.
        return self._names.resolve(-1 if tid == 0 and self._namespace else tid, comm)

    def _split(
        self, victim: int, cpu: int, t0: int, t1: int, first: Task | None, last: Task
    ) -> Iterator[tuple[int, int, int, bytes]]:
        line = self._lines.get(cpu)
        if line is None:
            yield t0, t1, *(first or last)
        else:
            yield from line.split(victim, t0, t1, *(first or line.running(t0) or last))

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these from now on."""
        self._list.watched = tuple(watched)
        self._side.watch(watched)
        self._list.rescan()
        self._tracker.watch({t: t for t in self._list.tids})

    def wait(self, timeout_s: float) -> None:
        """Until a ring is half full."""
        self._waiter.wait(timeout_s)

    def poll(self) -> SchedBatch:
        """As ``types.SchedSource``."""
        cpu_begun, begun = time.thread_time_ns(), self._clock()
        if self._list.due(begun):
            self._tracker.watch({t: t for t in self._list.tids})
        events, self._held = self._held, []
        for ring in self._rings:
            data = ring.read()
            if data:
                self.lost += parse(data, events)
        rows = Rows()
        self._feed(events, begun - MARGIN_NS, rows)
        opened = self._tracker.opened()
        oldest = min((o.since for o in opened), default=begun - 2 * MARGIN_NS)
        waits = {o.cpu for o in opened}
        self._lines = {c: line for c, line in self._lines.items() if c in waits}
        for line in self._lines.values():
            line.forget(oldest)
        batch = self._side.batch(
            self.level,
            begun,
            cpu_begun,
            rows,
            opened=opened,
            lost=self.lost,
            migrations=self._tracker.own_migrations(),
            exact_cpus=tuple(sorted(self._lines)),
        )
        self._judge(begun, batch.cost_ns)
        return batch

    def _judge(self, now: int, cost: int) -> None:
        share, self._last = cost / max(now - self._last, 1), now
        if share <= DEAR_SHARE:
            self._dear_since = 0
        elif not self._dear_since:
            self._dear_since = now
        elif now - self._dear_since > DEAR_NS:
            self.too_dear = True

    def _feed(self, events: list[Event], until: int, rows: Rows) -> None:
        events.sort()
        tracker, lines, watched = self._tracker, self._lines, self._tracker.watched
        self._names.tick()
        for i, (t, cpu, tid, _pid, preempted, nxt, npid) in enumerate(events):
            if t > until:
                self._held = events[i:]
                return
            if tid in watched:
                # From here on all that runs on this CPU is kept, until the thread is back.
                if cpu not in lines:
                    lines[cpu] = Timeline()
                self._names.hint(nxt, npid)
                tracker.out(t, tid, cpu, bool(preempted), nxt, b"")
            if nxt in watched:
                tracker.back(t, nxt, cpu, tid, b"", rows)
            line = lines.get(cpu)
            if line is not None:
                self._names.hint(nxt, npid)
                line.add(t, nxt, b"")

    def close(self) -> None:
        """Close all events."""
        for ring in self._rings:
            ring.close()
        self._rings = []
        self._waiter.close()
