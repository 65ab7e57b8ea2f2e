"""One rank's main thread: scheduling samples in, causes of gaps and the ``cpu`` view out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from sgtop_probes.sched.types import (
    IDLE,
    PREEMPTED,
    SLEPT,
    SPREAD,
    UNKNOWN,
    WAKEUP_WAIT,
    SchedBatch,
)

from sgtop_core.contention.throttle import Counters, Wait, share_out, wait_of
from sgtop_core.contention.windows import Contention, Sums, Who
from sgtop_core.model.arrays import I64
from sgtop_core.model.causes import BLOCKED, THROTTLED, Sources
from sgtop_core.model.causes import PREEMPTED as PREEMPTED_NAME
from sgtop_core.model.snapshot import Cpu, Culprit, Place
from sgtop_core.model.windows import TICK_NS, WINDOWS

MARGIN_NS = 1_000_000
"""A batch holds everything that happened up to this long before its poll."""
BLOCKED_NS = 20_000
"""Sleeps shorter than this are no cause of their own."""
PATIENCE_NS = 600_000_000
"""Waits are held this long for the quota's counters; they come five times a second."""
SLICE_NS = 2_000_000
"""Level D: waits known for a slice only are spread over it in pieces this far apart."""
SHOWN = 5

Rows = dict[str, I64]


def rows_of(batch: SchedBatch, tid: int) -> Rows:
    """The rows of one thread, as arrays."""
    columns = ("t0", "t1", "kind", "who_pid", "who_comm", "cpu", "wait", "first")
    all_tids = np.frombuffer(batch.tid, np.int64) if len(batch) else np.zeros(0, np.int64)
    mine = all_tids == tid
    return {c: (np.frombuffer(getattr(batch, c), np.int64)[mine] if len(batch) else all_tids) for c in columns}


def spread(t0: I64, t1: I64, wait: I64) -> tuple[I64, I64]:
    """Waits whose place in a slice is not known, as pieces that lie evenly in it: right on average, not one by one."""
    starts, ends = [], []
    for a, b, w in zip(t0.tolist(), t1.tolist(), wait.tolist(), strict=True):
        n = max((b - a) // SLICE_NS, 1)
        at = a + (b - a) * np.arange(n, dtype=np.int64) // n
        starts.append(at)
        ends.append(at + w // n)
    if not starts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(starts), np.concatenate(ends)


class RankCpu:
    """What the kernel's scheduler does to one main thread."""

    def __init__(self, pid: int, tid: int, kind_of: Callable[[int], str] = lambda pid: "other") -> None:
        """``kind_of``: as ``HostFacts.kind``."""
        self.pid, self.tid = pid, tid
        self.kind_of = kind_of
        self.ended: frozenset[int] = frozenset()
        """Processes that have ended, of those that ran instead lately."""
        self.level: str | None = None
        self.needs = ""
        self.place: Place | None = None
        self._windows = Contention()
        self._since = 0
        self._first = 0
        """ns of the first thing that is known."""
        self._quota = Counters()
        self._pending: list[Wait] = []
        self._open_parts: list[tuple[int, int, int, str]] = []
        self._migrations: int | None = None
        self._involuntary: int | None = None
        self._ticks: dict[int, Sums] = {}
        self._out: dict[str, list[tuple[I64, I64]]] = {}
        self._mark = 0

    def begin(self, t: int) -> None:
        """The rank is watched from ``t`` (ns) on; what was before is not counted, or every rate would be too high."""
        if t > self._since:
            self._since = t
            self._windows = Contention()

    # --- batches in -----------------------------------------------------------------------------------

    def feed(self, batch: SchedBatch) -> None:
        """Take a batch."""
        self.level = batch.level
        throttle = batch.throttle.get(self.pid)
        if throttle is not None:
            self._at(batch.time).nr_throttled += self._quota.update(batch.time, throttle)
        rows = rows_of(batch, self.tid)
        if not self._first:
            self._first = min([batch.time, *rows["t0"].tolist()])
        self._sleeps(rows)
        self._waits(batch, rows)
        self._counters(batch)
        self._settle(batch, counters=throttle is not None)
        for tick, sums in self._ticks.items():
            if tick >= self._since // TICK_NS:
                self._windows.add(tick * TICK_NS, sums)
        self._ticks = {}
        mark = batch.time - MARGIN_NS
        for o in batch.open:
            if o.tid == self.tid:
                mark = min(mark, o.since)
        if self._pending:
            mark = min(mark, self._pending[0].t0)
        self._mark = max(self._mark, mark)

    def _at(self, t: int) -> Sums:
        return self._ticks.setdefault(t // TICK_NS, Sums())

    def _push(self, source: str, t0: I64, t1: I64) -> None:
        if len(t0):
            self._out.setdefault(source, []).append((t0, t1))

    def _sleeps(self, rows: Rows) -> None:
        slept = (rows["kind"] == SLEPT) & (rows["t1"] - rows["t0"] >= BLOCKED_NS)
        self._push("blocked", rows["t0"][slept], rows["t1"][slept])

    def _waits(self, batch: SchedBatch, rows: Rows) -> None:
        kinds = rows["kind"]
        woken = kinds == WAKEUP_WAIT
        self._push("preempted", rows["t0"][woken], rows["t1"][woken])
        waits = np.flatnonzero(woken | (kinds == PREEMPTED) | (kinds == SPREAD))
        t0, t1 = rows["t0"].tolist(), rows["t1"].tolist()
        who, comm, first = rows["who_pid"].tolist(), rows["who_comm"].tolist(), rows["first"].tolist()
        wait, kind = rows["wait"].tolist(), kinds.tolist()
        for i in waits.tolist():
            if kind[i] == SPREAD:
                self._spread(batch, t0[i], t1[i], wait[i])
                continue
            part = (t0[i], t1[i], who[i], batch.comms[comm[i]])
            if kind[i] == WAKEUP_WAIT:
                self._credit(batch, (part,), 0)
                continue
            if first[i] and self._open_parts:
                self._pending.append(wait_of(self._open_parts))
                self._open_parts = []
            self._open_parts.append(part)
        if self._open_parts:
            self._pending.append(wait_of(self._open_parts))
            self._open_parts = []

    def _spread(self, batch: SchedBatch, t0: int, t1: int, wait: int) -> None:
        """Level D: some of the slice was spent waiting; as much of that as the quota's counters cover was its doing."""
        held = min(wait, self._quota.budget_ns) if self._quota.has_quota else 0
        self._quota.budget_ns -= held
        one = np.array([1], np.int64)
        if held:
            self._push("throttled", *spread(one * t0, one * t1, one * held))
            self._at(t1).throttled += held
        if wait > held:
            self._push("preempted", *spread(one * t0, one * t1, one * (wait - held)))
            self._credit(batch, ((t1 - wait + held, t1, UNKNOWN, "?"),), 0)

    def _settle(self, batch: SchedBatch, counters: bool) -> None:
        """Decide what the pending waits were, when the counters that cover them are there."""
        if not self._pending:
            return
        if not self._quota.has_quota:
            held: list[Wait] = []
            free, self._pending = self._pending, []
        elif counters or batch.time - self._pending[0].t1 > PATIENCE_NS:
            ready = [w for w in self._pending if w.t1 <= batch.time]
            self._pending = [w for w in self._pending if w.t1 > batch.time]
            held, free, self._quota.budget_ns = share_out(ready, self._quota.periods, self._quota.budget_ns)
            self._quota.periods = max(self._quota.periods - len(held), 0)
        else:
            return
        for w in held:
            self._at(w.t1).throttled += min(w.ns, max(w.t1 - self._since, 0))
        for w in free:
            self._credit(batch, w.parts, 1)
        for source, waits in (("throttled", held), ("preempted", free)):
            self._push(
                source,
                np.array([w.t0 for w in waits], np.int64),
                np.array([w.t1 for w in waits], np.int64),
            )

    def _credit(self, batch: SchedBatch, parts: Sequence[tuple[int, int, int, str]], preemptions: int) -> None:
        """Count one wait and put it down to who ran meanwhile."""
        parts = [(max(a, self._since), b, who, name) for a, b, who, name in parts if b > self._since]
        if not parts:
            return
        total = sum(b - a for a, b, _, _ in parts)
        sums = self._at(parts[-1][1])
        sums.wait += total
        sums.preemptions += preemptions
        sums.longest = max(sums.longest, total)
        for n, (a, b, who, name) in enumerate(parts):
            count = preemptions if n == 0 else 0
            if who == IDLE:
                continue
            if who != UNKNOWN:
                sums.credit((who, name, True), count, b - a)
                continue
            shares = [s for s in batch.suspects if s.share > 0]
            whole = sum(s.share for s in shares)
            for s in shares:
                sums.credit((s.pid, s.comm, False), count if s is shares[0] else 0, int((b - a) * s.share / whole))

    def _counters(self, batch: SchedBatch) -> None:
        moved = batch.migrations.get(self.tid)
        for c in batch.threads:
            if c.tid != self.tid:
                continue
            sums = self._at(c.time)
            if self.level == "D" and c.involuntary is not None:
                sums.preemptions += _grown(self._involuntary, c.involuntary)
                self._involuntary = c.involuntary
            if moved is None and c.migrations is not None:
                moved = c.migrations
            if self.place is not None and self.place.near_cpus and c.cpu is not None:
                near = c.cpu in self.place.near_cpus
                sums.near += near
                sums.far += not near
        if moved is not None:
            self._at(batch.time).migrations += _grown(self._migrations, moved)
            self._migrations = moved

    # --- out ------------------------------------------------------------------------------------------

    def drain(self, sources: Sources) -> None:
        """Hand all causes since the last call to the rank's ``Sources``."""
        names = {"preempted": PREEMPTED_NAME, "throttled": THROTTLED, "blocked": BLOCKED}
        for source, name in names.items():
            got = self._out.pop(source, [])
            t0 = np.concatenate([a for a, _ in got]) if got else np.zeros(0, np.int64)
            t1 = np.concatenate([b for _, b in got]) if got else np.zeros(0, np.int64)
            code = np.full(len(t0), sources.names.code(name), np.int64)
            sources.push(source, t0, t1, code, self._mark)

    def discard(self) -> None:
        """Forget the causes: there is nobody to hand them to."""
        self._out.clear()

    def view(self, level: int, end: int, shown: int = SHOWN) -> Cpu | None:
        """The ``cpu`` of a snapshot, in the window ``level`` that ends at ``end`` (ns); None before the first batch.

        ``shown``: how many culprits to list.
        """
        if self.level is None:
            return None
        s = self._windows.read(level, end)
        seen = sorted(s.culprits.items(), key=lambda kv: -kv[1][1])
        culprits = tuple(
            Culprit(pid, name, n, ns / 1e6, self._kind((pid, name, certain)), certain, pid in self.ended)
            for (pid, name, certain), (n, ns) in seen[:shown]
            if ns > 0
        )
        quota = self._quota.last
        return Cpu(
            level=self.level,
            message=self.needs,
            wait_ms=s.wait / 1e6,
            preemptions=s.preemptions,
            longest_ms=s.longest / 1e6 if self.level != "D" else None,
            culprits=culprits,
            throttled_ms=s.throttled / 1e6 if quota is not None else None,
            migrations=s.migrations if self._migrations is not None else None,
            numa_ok=None if not s.near + s.far else s.near >= s.far,
            nr_throttled=s.nr_throttled if quota is not None else None,
            place=self.place,
            seen_s=WINDOWS[level].span(end, self._since or self._first) / 1e9,
        )

    def _kind(self, who: Who) -> str:
        return self.kind_of(who[0])

    @property
    def quota(self) -> Counters:
        """The quota's counters."""
        return self._quota


def _grown(before: int | None, now: int) -> int:
    return 0 if before is None else max(now - before, 0)
