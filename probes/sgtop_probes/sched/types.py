"""What the CPU probes hand out: one batch of off-CPU intervals a poll, with counters beside it.

Every time is ``CLOCK_MONOTONIC`` in nanoseconds. Intervals are columns (``array('q')``), so that a core with numpy
views them without a copy; counters are cumulative, so that a reader that skips a batch loses nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PREEMPTED = 0
"""Taken off the CPU while it wanted to run on: another task, or its cgroup's quota. Run-queue wait."""
SLEPT = 1
"""Waited for something (a socket, a lock, a timer). At levels B and C the run-queue wait after it is in here."""
WAKEUP_WAIT = 2
"""Ready to run after a sleep, and not on a CPU yet. Run-queue wait; level A only."""
SPREAD = 3
"""Run-queue wait known for a slice of time only (level D): ``wait`` nanoseconds of it, somewhere in t0..t1."""
KINDS: tuple[str, ...] = ("preempted", "slept", "wakeup-wait", "wait")

IDLE = 0
"""``who_pid`` of an interval whose CPU ran nothing: the thread was held back (throttled), or the CPU woke up."""
UNKNOWN = -1
"""``who_pid`` where this level cannot tell who ran."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A process whose scheduling matters: a rank's scheduler, by pid and main thread in sgtop's pid namespace."""

    pid: int
    tid: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the next better level lacks: in words, and the exact command or flag that gives it."""

    level: str
    missing: str
    mend: str


@dataclass(frozen=True, slots=True)
class Open:
    """An off-CPU interval that has not ended yet."""

    tid: int
    since: int
    kind: int
    who_pid: int
    who_comm: str
    cpu: int


@dataclass(frozen=True, slots=True)
class ThreadCounters:
    """One thread's counters since it started (``/proc/PID/task/TID``: schedstat, status, stat).

    ``None`` where the kernel does not give a value. ``migrations`` needs ``/proc/PID/sched`` (own or root), else it
    is counted by sgtop from changes of CPU between readings and is a lower bound.
    """

    pid: int
    tid: int
    time: int
    run_ns: int | None
    wait_ns: int | None
    slices: int | None
    voluntary: int | None
    involuntary: int | None
    migrations: int | None
    cpu: int | None
    state: str


@dataclass(frozen=True, slots=True)
class Throttle:
    """CPU quota of the cgroup that binds a process most tightly (cgroup v1 or v2).

    ``throttled_ns`` sums over CPUs, as the kernel counts it. ``quota_cpus`` is None where there is no quota.
    """

    path: str
    version: int
    quota_cpus: float | None
    period_us: int | None
    nr_periods: int
    nr_throttled: int
    throttled_ns: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """A thread that used the CPU a watched thread waited for (levels C and D: likely, not proven)."""

    pid: int
    tid: int
    comm: str
    cpu: int
    share: float
    """Of one CPU, over the time since the scan before."""


@dataclass(frozen=True, slots=True)
class SchedBatch:
    """All that one poll found.

    Columns have one row an interval (an interval in which several tasks ran one after the other has one row each,
    ``first`` is 1 on the first of them): ``t0``, ``t1``, ``tid`` (watched thread), ``kind``, ``who_pid`` (process that
    ran meanwhile; IDLE, UNKNOWN), ``who_comm`` (index into ``comms``), ``cpu`` (where it was taken off, or waited),
    ``wait`` (ns of the row spent runnable and not running), ``first``.
    """

    level: str
    time: int
    """ns, when the poll began: everything before it is in this batch or an earlier one, but for a millisecond."""
    since: int
    """ns, ``time`` of the batch before."""
    t0: array[int]
    t1: array[int]
    tid: array[int]
    kind: array[int]
    who_pid: array[int]
    who_comm: array[int]
    cpu: array[int]
    wait: array[int]
    first: array[int]
    comms: tuple[str, ...] = ()
    open: tuple[Open, ...] = ()
    threads: tuple[ThreadCounters, ...] = ()
    throttle: Mapping[int, Throttle] = field(default_factory=dict)
    """Watched pid → its quota's counters."""
    suspects: tuple[Suspect, ...] = ()
    lost: int = 0
    """Records lost since the source was opened."""
    migrations: Mapping[int, int] = field(default_factory=dict)
    """Watched tid → times it came back on another CPU, since the source was opened (levels A to C)."""
    exact_cpus: tuple[int, ...] = ()
    """CPUs on which every switch was read, so that each competitor is credited with what it ran."""
    host_pids: bool = False
    """True: pids in ``who_pid`` that could not be translated are the host's, not those of sgtop's namespace."""
    cost_ns: int = 0
    """CPU time that this poll took in sgtop."""

    def __len__(self) -> int:
        return len(self.t0)


COLUMNS: tuple[str, ...] = ("t0", "t1", "tid", "kind", "who_pid", "who_comm", "cpu", "wait", "first")


Row = tuple[int, int, int, int, int, int, int, int, int]


class Rows:
    """Builds the columns of a batch."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._index: dict[str, int] = {}

    def add(
        self, t0: int, t1: int, tid: int, kind: int, who_pid: int, who_comm: str, cpu: int, wait: int, first: int = 1
    ) -> None:
        """One row; see ``SchedBatch``."""
        comm = self._index.setdefault(who_comm, len(self._index))
        self._rows.append((t0, t1, tid, kind, who_pid, comm, cpu, wait, first))

    def columns(self) -> dict[str, array[int]]:
        """The columns of all rows so far."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(COLUMNS)
        return {name: array("q", values) for name, values in zip(COLUMNS, columns, strict=True)}

    def comms(self) -> tuple[str, ...]:
        """The names that ``who_comm`` indexes."""
        return tuple(self._index)


class SchedSource(Protocol):
    """One way of learning who takes the CPU from the watched threads."""

    @property
    def level(self) -> str:
        """``A`` to ``D``; A is best."""

    @property
    def needs(self) -> Needs | None:
        """What the next better level would need; None at level A."""

    @property
    def lost(self) -> int:
        """Records lost since opening."""

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these processes from now on (a server came back, a rank went)."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until a ring is half full, at most ``timeout_s``: poll after it, and nothing is lost."""

    def poll(self) -> SchedBatch:
        """What happened since the poll before. Never blocks; a vanished process is simply no longer in it."""

    def close(self) -> None:
        """Give everything back."""
