"""Level A: the sched_switch and sched_wakeup tracepoints on all CPUs, filtered in the kernel to the watched threads.

Who ran instead, for how long, and how long a woken thread waited. Needs CAP_PERFMON (or perf_event_paranoid ≤ -1) and
tracefs for the tracepoints' ids. One ring a CPU holds both events in their order; other tasks pay a few hundred
nanoseconds a switch for the filter. The ring belongs to a dummy event: the kernel gives an event one filter for its
life, so a new set of threads means new events into the same ring.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence

from . import filters, perf
from .exact import MOST_EVENTS_PER_S, Exact, ExactPlan, ExactRing
from .intervals import Tracker
from .names import Names, in_initial_pid_namespace
from .nsmap import HostTids
from .own import Returns
from .rings import Waiter, pages_for, with_descriptors
from .side import Side, online_cpus
from .threads import WatchList
from .tracefs import SAMPLE, SwitchLayout, load
from .types import SLEPT, Needs, Rows, SchedBatch, Watched

MARGIN_NS = 1_000_000
"""Events younger than this wait for the next poll: another CPU's ring may still get an older one."""
_SAMPLE_TYPE = perf.SAMPLE_TID | perf.SAMPLE_TIME | perf.SAMPLE_CPU | perf.SAMPLE_RAW
_RUNNABLE = 0xFF
"""A state without these bits: the task wanted to run on (R, or R+ with the preemption bit above)."""

_IDLE = 0
"""The tid of every CPU's idle task."""
_SWITCH, _WAKE = 1, 0
Event = tuple[int, int, int, int, int, int, bytes, int, bytes]
"""(time, _SWITCH|_WAKE, cpu, prev tid or woken tid, header's pid, prev_state, prev_comm, next tid, next_comm)"""


def parse(data: bytes, layout: SwitchLayout, out: list[Event]) -> int:
    """Append the events in a ring's bytes to ``out``; the number of lost records.

    Records of an unknown kind, cut short, or of another tracepoint are passed over.
    """
    lost = 0
    sample, switch = SAMPLE.unpack_from, layout.prev.unpack_from
    head = SAMPLE.size
    for type_, _misc, body, end in perf.records(data):
        if type_ != perf.RECORD_SAMPLE:
            lost += perf.lost_in(type_, data, body, end)
            continue
        if end - body < head + 2:
            continue
        pid, _tid, t, cpu, _raw = sample(data, body)
        raw = body + head
        event = data[raw] | data[raw + 1] << 8
        if event == layout.switch_id and end - raw >= layout.switch_raw:
            prev_comm, prev, state, next_comm, nxt = switch(data, raw)
            out.append((t, _SWITCH, cpu, prev, pid, state, prev_comm, nxt, next_comm))
        elif event == layout.wakeup_id and end - raw >= layout.wake_raw:
            at = raw + layout.wake_pid
            out.append((t, _WAKE, cpu, int.from_bytes(data[at : at + 4], "little", signed=True), pid, 0, b"", 0, b""))
    return lost


class _CpuRing(ExactRing):
    """Every switch of one CPU."""

    def __init__(self, layout: SwitchLayout, names: Names, cpu: int, pages: int) -> None:
        self._layout, self._names = layout, names
        fd = with_descriptors(
            lambda: perf.open_event(
                perf.TYPE_TRACEPOINT,
                layout.switch_id,
                pid=-1,
                cpu=cpu,
                sample_type=_SAMPLE_TYPE,
                watermark=pages * perf.PAGE // 2,
            )
        )
        self.ring = perf.Ring(fd, pages)
        self.lost = 0

    def start(self) -> None:
        """Record from now on."""
        perf.enable(self.ring.fd)

    def stop(self) -> None:
        """Record no more."""
        perf.disable(self.ring.fd)
        self.ring.read()

    def read(self) -> Iterable[tuple[int, int, bytes]]:
        """Switch-ins, in their order."""
        events: list[Event] = []
        self.lost += parse(self.ring.read(), self._layout, events)
        for e in events:
            self._names.hint(e[3], e[4])
        return [(e[0], e[7], e[8]) for e in events if e[1] == _SWITCH]

    def close(self) -> None:
        """Give it back."""
        self.ring.close()


class LevelA:
    """As ``types.SchedSource``."""

    level = "A"

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        every_thread: bool = False,
        exact: bool = True,
        exact_limit: int = MOST_EVENTS_PER_S,
        pages: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Open the events.

        Args:
            watched: the processes.
            every_thread: all their threads, not only the main ones.
            exact: credit several competitors exactly where watched threads wait.
            exact_limit: switches a second that this may read, all CPUs together.
            pages: pages of each ring, a power of two; None: chosen by the number of CPUs.
            clock: CLOCK_MONOTONIC in ns.

        Raises:
            tracefs.TracefsError: the tracepoints' ids cannot be read.
            OSError: perf_event_open refused, or the rings need more locked memory than allowed.
        """
        self._clock = clock
        self._layout = SwitchLayout(*load())
        translate = not in_initial_pid_namespace()
        self._names = Names(translate=translate)
        self._list = WatchList(watched, every_thread)
        self._hosts = HostTids(self._layout, translate=translate)
        self._rings: dict[int, perf.Ring] = {}
        self._events: list[int] = []
        self._waiter = Waiter()
        self._returns = Returns(self._waiter)
        self._held: list[Event] = []
        self._lost = 0
        self._last = clock()
        cpus = online_cpus()
        self._pages = pages or pages_for(len(cpus))
        self._exact = Exact(self._make_exact, ExactPlan(exact_limit)) if exact else None
        self._tracker = (
            Tracker(self._names.resolve, self._exact.split) if self._exact is not None else Tracker(self._names.resolve)
        )
        try:
            self._hosts.want(self._list.tids)
            for cpu in cpus:
                with_descriptors(lambda cpu=cpu: self._open_ring(cpu))  # type: ignore[misc]
            self._refilter()
        except BaseException:
            self.close()
            raise
        self._side = Side(watched)

    @property
    def mended(self) -> bool:
        """The tracepoints miss switches here; the threads' own records fill in."""
        return self._returns.started

    @property
    def needs(self) -> Needs | None:
        """Nothing is better."""
        return None

    @property
    def lost(self) -> int:
        """Records lost since opening, those of exact crediting among them."""
        return self._lost + self._returns.lost + (self._exact.lost if self._exact is not None else 0)

    def _open_ring(self, cpu: int) -> None:
        try:
            fd = perf.open_event(
                perf.TYPE_SOFTWARE,
                perf.SW_DUMMY,
                pid=-1,
                cpu=cpu,
                sample_type=_SAMPLE_TYPE,
                watermark=self._pages * perf.PAGE // 2,
            )
        except OSError as e:
            if e.errno == errno.ENODEV:  # went off line since we looked
                return
            raise
        ring = self._rings[cpu] = perf.Ring(fd, self._pages)
        self._waiter.add(ring)

    def _open_events(self, tracepoint: int, text: str, into: list[int]) -> None:
        """One event a CPU that writes into its ring; each descriptor is in ``into`` as soon as it is open."""
        for cpu, ring in self._rings.items():
            fd = with_descriptors(
                lambda cpu=cpu: perf.open_event(  # type: ignore[misc]
                    perf.TYPE_TRACEPOINT, tracepoint, pid=-1, cpu=cpu, sample_type=_SAMPLE_TYPE
                )
            )
            into.append(fd)
            perf.set_filter(fd, text)
            perf.redirect(fd, ring.fd)

    def _make_exact(self, cpu: int) -> ExactRing:
        made = _CpuRing(self._layout, self._names, cpu, self._pages)
        self._waiter.add(made.ring)
        return made

    def _refilter(self) -> None:
        own = self._hosts.map()
        self._tracker.watch(own)
        self._returns.watch({o: host for host, o in own.items()})
        old, self._events = self._events, []
        self._open_events(self._layout.switch_id, filters.build(("prev_pid", "next_pid"), own), self._events)
        self._open_events(self._layout.wakeup_id, filters.build(("pid",), own), self._events)
        # The new ones run before the old ones end: what both record the tracker takes once.
        for fd in self._events:
            perf.enable(fd)
        for fd in old:
            os.close(fd)

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these from now on."""
        self._list.watched = tuple(watched)
        self._side.watch(watched)
        self._list.rescan()
        self._hosts.want(self._list.tids)
        self._refilter()

    def wait(self, timeout_s: float) -> None:
        """Until a ring is half full."""
        self._waiter.wait(timeout_s)

    def poll(self) -> SchedBatch:
        """As ``types.SchedSource``."""
        cpu_begun, begun = time.thread_time_ns(), self._clock()
        if self._list.due(begun):
            self._hosts.want(self._list.tids)
            self._refilter()
        if self._hosts.pending and self._hosts.learn():
            self._refilter()
        events, self._held = self._held, []
        for ring in self._rings.values():
            data = ring.read()
            if data:
                self._lost += parse(data, self._layout, events)
        for t, tid, cpu in self._returns.read():
            # In the place of a switch from the idle task that the tracepoint missed; where it did not, a second return
            # of a thread that is back already, which changes nothing.
            events.append((t, _SWITCH, cpu, _IDLE, _IDLE, 0, b"swapper/%d" % cpu, tid, b""))
        if self._exact is not None:
            self._exact.drain()
        rows = Rows()
        self._feed(events, begun - MARGIN_NS, rows)
        if self._tracker.broken:
            self._returns.start()
        opened = self._tracker.opened()
        if self._exact is not None:
            waited = self._tracker.take_waited()
            for o in opened:
                if o.kind != SLEPT:
                    waited[o.cpu] = max(waited.get(o.cpu, 0), begun - o.since)
            oldest = min((o.since for o in opened), default=begun)
            self._exact.plan(begun, begun - self._last, waited, min(oldest, begun - 2 * MARGIN_NS))
        self._last = begun
        return self._side.batch(
            self.level,
            begun,
            cpu_begun,
            rows,
            opened=opened,
            lost=self.lost,
            migrations=self._tracker.own_migrations(),
            exact_cpus=self._exact.cpus if self._exact is not None else (),
            host_pids=self._names.untranslated,
        )

    def _feed(self, events: list[Event], until: int, rows: Rows) -> None:
        events.sort()
        tracker, names, watched = self._tracker, self._names, self._tracker.watched
        names.tick()
        for i, (t, kind, cpu, tid, pid, state, comm, nxt, next_comm) in enumerate(events):
            if t > until:
                self._held = events[i:]
                break
            if kind == _WAKE:
                tracker.wake(t, tid, cpu)
                continue
            names.hint(tid, pid)
            if tid in watched:
                tracker.out(t, tid, cpu, not state & _RUNNABLE, nxt, next_comm)
            if nxt in watched:
                tracker.back(t, nxt, cpu, tid, comm, rows)

    def close(self) -> None:
        """Close all events."""
        for fd in self._events:
            os.close(fd)
        self._events = []
        for ring in self._rings.values():
            ring.close()
        self._rings = {}
        if self._exact is not None:
            self._exact.close()
        self._returns.close()
        self._hosts.close()
        self._waiter.close()
