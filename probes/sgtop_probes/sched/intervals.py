"""From switch and wake-up events of watched threads to off-CPU intervals. Pure: no clock, no kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from .types import PREEMPTED, SLEPT, UNKNOWN, WAKEUP_WAIT, Open, Rows

DOUBLE_NS = 20_000
"""Nobody leaves the CPU twice so quickly: it is one switch that two events recorded while filters were changed."""

Task = tuple[int, bytes]
"""Thread id as in the record, comm."""
Split = Callable[[int, int, int, int, "Task | None", Task], Iterator[tuple[int, int, int, bytes]]]
"""(victim, cpu, t0, t1, what ran first if known, what ran last) → (from, to, tid, comm), contiguous from t0 to t1."""
Resolve = Callable[[int, bytes], tuple[int, str]]


@dataclass(slots=True)
class _Off:
    """A watched thread that is off the CPU."""

    since: int
    cpu: int
    preempted: bool
    who: int
    comm: bytes
    woken: int = 0
    woken_cpu: int = -1


def first_only(
    victim: int, cpu: int, t0: int, t1: int, first: Task | None, last: Task
) -> Iterator[tuple[int, int, int, bytes]]:
    """The split of a level that knows one competitor only."""
    del victim, cpu
    yield t0, t1, *(first if first is not None else last)


class Tracker:
    """One state a watched thread. Events must come in the order of their times."""

    def __init__(self, resolve: Resolve, split: Split = first_only) -> None:
        self._resolve = resolve
        self._split = split
        self._off: dict[int, _Off | None] = {}
        self.watched: Collection[int] = self._off
        """The watched threads, as in the records."""
        self._last_cpu: dict[int, int] = {}
        self._own: dict[int, int] = {}
        self.migrations: dict[int, int] = {}
        self.broken = 0
        """Times two events of a thread did not fit together (records were lost between them)."""
        self.waited: dict[int, int] = {}
        """CPU → ns that watched threads waited there since ``take_waited``."""

    def watch(self, tids: Mapping[int, int]) -> None:
        """Watch exactly these (tid as in the records → tid as rows shall say); what is known of those is kept."""
        want = set(tids)
        self._own = dict(tids)
        self._off = {t: self._off.get(t) for t in want}
        self.watched = self._off
        self._last_cpu = {t: c for t, c in self._last_cpu.items() if t in want}
        self.migrations = {t: self.migrations.get(t, 0) for t in want}

    def out(self, time: int, tid: int, cpu: int, preempted: bool, who: int, comm: bytes) -> None:
        """``tid`` left the CPU, which runs ``who`` now."""
        if tid not in self._off:
            return
        off = self._off[tid]
        if off is not None:
            if time - off.since < DOUBLE_NS:
                return
            self.broken += 1
        self._off[tid] = _Off(time, cpu, preempted, who, comm)
        self._last_cpu[tid] = cpu

    def wake(self, time: int, tid: int, cpu: int = -1) -> None:
        """``tid`` is ready to run (on ``cpu``'s queue)."""
        off = self._off.get(tid)
        if off is not None and not off.preempted and not off.woken:
            off.woken, off.woken_cpu = time, cpu

    def back(self, time: int, tid: int, cpu: int, before: int, comm: bytes, rows: Rows) -> None:
        """``tid`` runs again on ``cpu``, after ``before``. The interval that ends goes into ``rows``."""
        if tid not in self._off:
            return
        last = self._last_cpu.get(tid, cpu)
        self._last_cpu[tid] = cpu
        if cpu != last:
            self.migrations[tid] = self.migrations.get(tid, 0) + 1
        off = self._off[tid]
        self._off[tid] = None
        if off is None or time < off.since:
            return
        if off.preempted:
            # Having moved to another CPU while it waited, it waited there too, for whom nobody knows: only the first
            # competitor is certain then.
            split = self._split if cpu == off.cpu else first_only
            self._wait(
                rows, tid, PREEMPTED, off.cpu, split(tid, off.cpu, off.since, time, (off.who, off.comm), (before, comm))
            )
            return
        slept_to = off.woken or time
        rows.add(off.since, slept_to, self._own[tid], SLEPT, UNKNOWN, "", off.cpu, 0)
        if off.woken:
            self._wait(rows, tid, WAKEUP_WAIT, cpu, self._split(tid, cpu, off.woken, time, None, (before, comm)))

    def _wait(self, rows: Rows, tid: int, kind: int, cpu: int, parts: Iterator[tuple[int, int, int, bytes]]) -> None:
        first = 1
        for a, b, ran, name in parts:
            self.waited[cpu] = self.waited.get(cpu, 0) + b - a
            rows.add(a, b, self._own[tid], kind, *self._resolve(ran, name), cpu, b - a, first)
            first = 0

    def own_migrations(self) -> dict[int, int]:
        """Watched tid (as rows say it) → times it came back on another CPU."""
        return {self._own[t]: n for t, n in self.migrations.items() if t in self._own}

    def take_waited(self) -> dict[int, int]:
        """CPU → ns waited since the call before, the intervals that ended."""
        out, self.waited = self.waited, {}
        return out

    def opened(self) -> tuple[Open, ...]:
        """The intervals that have not ended."""
        out = []
        for record_tid, off in self._off.items():
            if off is None:
                continue
            tid = self._own[record_tid]
            if off.preempted:
                out.append(Open(tid, off.since, PREEMPTED, *self._resolve(off.who, off.comm), off.cpu))
            elif off.woken:
                out.append(Open(tid, off.woken, WAKEUP_WAIT, UNKNOWN, "", off.woken_cpu))
            else:
                out.append(Open(tid, off.since, SLEPT, UNKNOWN, "", off.cpu))
        return tuple(out)
