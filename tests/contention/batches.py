"""Batches of scheduling samples, agent frames and facts, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sgtop_agent.wire import STAGES, TABLES, Frame, events
from sgtop_core.findings.base import Facts, RankFacts
from sgtop_core.model.model import unknown_rank
from sgtop_core.model.snapshot import Cpu, Mode, Quantiles, Rank, Server, StepGaps
from sgtop_probes import codec
from sgtop_probes.sched.types import (
    PREEMPTED,
    SLEPT,
    SPREAD,
    WAKEUP_WAIT,
    Open,
    Rows,
    SchedBatch,
    Suspect,
    ThreadCounters,
    Throttle,
)

MS = 1_000_000
S = 1_000_000_000
TID = 100


class Build:
    """Collects rows; ``batch`` closes them."""

    def __init__(self, level: str = "A", tid: int = TID) -> None:
        self.level, self.tid = level, tid
        self.rows = Rows()
        self.since = 0

    def preempted(self, t0: int, *parts: tuple[int, int, str], cpu: int = 4) -> Build:
        """One preemption from ``t0``: (until, pid, name) of each that ran."""
        first = 1
        for until, pid, name in parts:
            self.rows.add(t0, until, self.tid, PREEMPTED, pid, name, cpu, until - t0, first)
            t0, first = until, 0
        return self

    def woken(self, t0: int, t1: int, pid: int, name: str) -> Build:
        self.rows.add(t0, t1, self.tid, WAKEUP_WAIT, pid, name, 4, t1 - t0)
        return self

    def slept(self, t0: int, t1: int) -> Build:
        self.rows.add(t0, t1, self.tid, SLEPT, -1, "", 4, 0)
        return self

    def spread(self, t0: int, t1: int, wait: int) -> Build:
        self.rows.add(t0, t1, self.tid, SPREAD, -1, "", 4, wait)
        return self

    def batch(
        self,
        time: int,
        *,
        throttle: Throttle | None = None,
        pid: int = TID,
        threads: Iterable[ThreadCounters] = (),
        suspects: Iterable[Suspect] = (),
        open_: Iterable[Open] = (),
        migrations: Mapping[int, int] | None = None,
    ) -> SchedBatch:
        rows, self.rows = self.rows, Rows()
        since, self.since = self.since, time
        return SchedBatch(
            level=self.level,
            time=time,
            since=since,
            **rows.columns(),
            comms=rows.comms(),
            throttle={pid: throttle} if throttle is not None else {},
            threads=tuple(threads),
            suspects=tuple(suspects),
            open=tuple(open_),
            migrations=dict(migrations or {}),
        )


def quota(nr: int, ns: int, cpus: float | None = 2.0) -> Throttle:
    return Throttle("/sys/fs/cgroup/x", 2, cpus, 100_000, 10 * nr, nr, ns)


def counters(time: int, *, involuntary: int = 0, migrations: int = 0, cpu: int = 4) -> ThreadCounters:
    return ThreadCounters(TID, TID, time, 0, 0, 0, 0, involuntary, migrations, cpu, "R")


HELLO: dict[str, Any] = {
    "k": "hello",
    "proto": 1,
    "pid": TID,
    "tid": TID,
    "caps": ["step", "stage", "forward"],
    "modes": {"EXTEND": 1, "DECODE": 2},
    "stages": list(STAGES),
    "rank": {"tp": 0, "tp_size": 1},
    "args": {},
}


def frame(table: str, rows: Iterable[Mapping[str, int]]) -> Frame:
    """Rows of a table, columns that are not given are -1; through the real codec."""
    from sgtop_agent.wire import pack

    rows = list(rows)
    columns = {c: [r.get(c, -1) for r in rows] for c in TABLES[table]}
    (got,) = codec.reader().feed(pack(events(table, columns)))
    return got


def busy_rank(cpu: Cpu | None, *, steps: int = 500, preempted_ms: float = 0.0, label: str = "gpu", **more: Any) -> Rank:
    """A rank that decodes, as a snapshot shows it."""
    q = Quantiles(steps, 5.0, 9.0, 12.0, 2500.0)
    mode = Mode(steps, steps / 5, 100.0, 8, 8, q, None, 1.0)
    causes = {"preempted": preempted_ms, "other": 100.0}
    gaps = StepGaps(Quantiles(steps, 0.1, 1.0, 9.0, 100.0 + preempted_ms), label, causes)
    r = unknown_rank("TP0", 4242, "live", "")
    return replace(r, modes={"DECODE": mode} if steps else {}, gaps=gaps, cpu=cpu, **more)


def facts(
    *ranks: Rank, held: Iterable[str | None] = (), gpus: Any = (), args: Mapping[str, Any] | None = None
) -> Facts:
    on = set(held)
    return Facts(
        0.0,
        Server(30000, "m", "0.5.23", 1, None, None),
        tuple(RankFacts(r, r, 5.0, 5.0, {}, args or {}, {}, 60.0) for r in ranks),
        (),
        gpus,
        lambda rank: rank in on,
    )
