"""Findings about CPU time: preempted, throttled, far from the GPU, too many threads; and GPUs that slow down.

A scheduler that spins while it is idle is no finding, and nobody who takes the CPU from an idle one is. Neither is
this sgtop, whose cost stands in the header; another one is, and is called what it is. Processes of the server are a
note until they cost a stated share of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sgtop_core.contention import advice
from sgtop_core.findings.base import Facts, RankFacts, Verdict, flag, ms, percent
from sgtop_core.model.snapshot import Cpu, Culprit, Place

ENTER, LEAVE = 0.015, 0.005
"""Share of the last 5 s that a rank waited for others; to raise the finding, and to keep it."""
CRITICAL = 0.10
OWN_NOTE, OWN_WARN = 0.03, 0.10
"""The same for processes of the server itself: below the first nothing is said, from the second on it is a warning."""
LISTED = 0.01
"""Share of what was taken from which on a process is named."""
CRUMBS_MS = 0.05
"""What the unnamed took is not told when it is less."""
THROTTLED_ENTER, THROTTLED_LEAVE = 0.01, 0.002
THREADS_EACH, THREADS_LEAST = 8, 64
THREADS_PART = 0.25
"""Share of all that was lost which its own threads must be the reason of: below it the others are what is wrong."""
THREADS_UNKNOWN = 0.10
"""Share of the last 5 s from which on waits count although nobody knows who ran."""


def _busy(r: RankFacts) -> bool:
    """It had work: whoever delays a loop that finds nothing to do delays nobody."""
    return any(m.steps for m in r.short.modes.values())


def _cpu(r: RankFacts) -> Cpu | None:
    return r.short.cpu if r.short_s >= 1 and _busy(r) else None


def _places(facts: Facts, but: RankFacts) -> list[Place]:
    out = []
    for r in facts.ranks:
        if r is not but and r.short.cpu is not None and r.short.cpu.place is not None:
            out.append(r.short.cpu.place)
    return out


def _lost(r: RankFacts, share: float) -> str:
    """What the waits cost: the part of the gaps that they caused, named for what it is."""
    gaps = r.short.gaps
    in_gaps = gaps.causes_ms.get("preempted", 0.0) * share if gaps is not None else 0.0
    span = f"in {r.short_s:.0f} s"
    kernels, traced = r.short.kernel_gaps, r.short.tracing.traced_s if r.short.tracing is not None else 0.0
    if kernels is not None and kernels.causes_ms.get("preempted"):
        # Its window is its own: the seconds that were traced of the newest that saw any.
        return f"{ms(kernels.causes_ms['preempted'] * share)} of GPU idle in {traced:.1f} s traced"
    if gaps is not None and gaps.label == "gpu":
        return f"{ms(in_gaps)} between forwards {span}"
    return f"{ms(in_gaps)} between forwards (host) {span}"


def _who(c: Culprit, r: RankFacts) -> str:
    """A process by name and pid; the scheduler's other threads, which have its name, are called what they are."""
    if c.pid == r.short.pid:
        return f"its own threads (pid {c.pid})"
    name = "another sgtop" if c.kind == "another-sgtop" else c.comm
    return f"{name} (pid {c.pid}, ended)" if c.ended else f"{name} (pid {c.pid})"


def _list(culprits: Sequence[Culprit], r: RankFacts) -> str:
    """Who took how much. Those with less than a hundredth of it all are counted together, if that is anything."""
    least = LISTED * sum(c.ms for c in culprits)
    named = [c for i, c in enumerate(culprits) if i == 0 or c.ms >= least]
    rest = [c for i, c in enumerate(culprits) if i > 0 and c.ms < least]
    parts = [f"{_who(c, r).replace('(pid ', '(')} {c.count}× {ms(c.ms)}" for c in named]
    if sum(c.ms for c in rest) >= CRUMBS_MS:
        parts.append(f"{len(rest)} {'other' if len(rest) == 1 else 'others'} {ms(sum(c.ms for c in rest))}")
    return ", ".join(parts)


class _Preempted:
    id = "preempted"
    raise_s = 1.0
    clear_s = 4.0
    own = False

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for r in facts.ranks:
            cpu = _cpu(r)
            if cpu is None:
                continue
            mine = [c for c in cpu.culprits if (c.kind == "server") == self.own and c.kind != "sgtop"]
            total = sum(c.ms for c in mine)
            share = total / 1e3 / r.short_s
            enter, leave = (OWN_NOTE, OWN_NOTE / 2) if self.own else (ENTER, LEAVE)
            if not mine or share < (leave if facts.held(r.label) else enter):
                continue
            yield self._verdict(facts, r, cpu, mine, total, share)

    def _verdict(
        self, facts: Facts, r: RankFacts, cpu: Cpu, mine: list[Culprit], total: float, share: float
    ) -> Verdict:
        top = mine[0]
        wait = cpu.wait_ms or total
        by = "" if top.certain else "probably "
        title = (
            f"{r.label} preempted {top.count or cpu.preemptions or 0}× by {by}{_who(top, r)}, "
            f"{_lost(r, min(1.0, total / wait) if wait else 1.0)}"
        )
        at = f" for CPU {cpu.place.cpu}" if cpu.place is not None and cpu.place.cpu is not None else ""
        evidence = (
            f"its main thread waited {ms(total)} of {r.short_s:.0f} s{at} ({percent(share)})"
            + (f", longest {ms(cpu.longest_ms)}" if cpu.longest_ms is not None else "")
            + f": {_list(mine, r)}; level {cpu.level}"
        )
        others = _places(facts, r)
        if self.own:
            severity = "warning" if share >= OWN_WARN else "info"
            return Verdict(r.label, severity, title, evidence, advice.pin_rank(r.short.pid, cpu.place, others))
        # A command for one that is still there, if one of those took enough by itself.
        there = (c for c in mine if not c.ended and c.ms / 1e3 / r.short_s >= ENTER)
        step = advice.move_culprit(next(there, top), cpu.place, others).replace("SCHEDULER_PID", str(r.short.pid))
        return Verdict(r.label, "critical" if share >= CRITICAL else "warning", title, evidence, step)


class _PreemptedByServer(_Preempted):
    id = "preempted-by-server"
    raise_s = 3.0
    own = True


class _Throttled:
    id = "throttled"
    raise_s = 1.0
    clear_s = 4.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for r in facts.ranks:
            cpu = _cpu(r)
            if cpu is None or cpu.throttled_ms is None:
                continue
            share = cpu.throttled_ms / 1e3 / r.short_s
            if share < (THROTTLED_LEAVE if facts.held(r.label) else THROTTLED_ENTER):
                continue
            p = cpu.place
            quota = "its cgroup's quota" if p is None or p.quota_cpus is None else f"a quota of {_cpus(p.quota_cpus)}"
            title = f"{r.label} throttled by {quota}: held back {ms(cpu.throttled_ms)} in {r.short_s:.0f} s"
            evidence = f"nr_throttled rose by {cpu.nr_throttled}" + (
                f" in {p.quota_path}" if p is not None and p.quota_path else ""
            )
            if p is not None and p.threads is not None:
                evidence += f"; the scheduler alone has {p.threads} threads"
            severity = "critical" if share >= CRITICAL else "warning"
            yield Verdict(r.label, severity, title, evidence, advice.raise_quota(cpu, r.short.pid))


class _Numa:
    id = "numa"
    raise_s = 5.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for r in facts.ranks:
            cpu = r.short.cpu
            if cpu is None or cpu.numa_ok is not False or cpu.place is None:
                continue
            p = cpu.place
            bound = bool(p.allowed_cpus) and not set(p.allowed_cpus) & set(p.near_cpus)
            where = f"on NUMA node {p.node}" if p.node is not None else "far from its GPU"
            title = f"{r.label} runs {where}, its GPU is on node {p.gpu_node}"
            evidence = (
                "its CPU list has none of that node's" if bound else "it is not bound, and the kernel put it there"
            )
            nodes = [
                o.short.cpu.place.gpu_node
                for o in facts.ranks
                if o.short.cpu is not None and o.short.cpu.place is not None
                if o.short.cpu.place.gpu_node is not None
            ]
            step = advice.near_gpu(
                r.short.pid, p, flag(r.args, "numa_node"), nodes if len(nodes) == len(facts.ranks) else ()
            )
            yield Verdict(r.label, "warning", title, evidence, step)


class _Threads:
    id = "too-many-threads"
    raise_s = 3.0
    clear_s = 10.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for r in facts.ranks:
            cpu = _cpu(r)
            p = cpu.place if cpu is not None else None
            if cpu is None or p is None or p.threads is None:
                continue
            cpus = min(p.quota_cpus or 1e9, len(p.allowed_cpus) or 1e9)
            if p.threads < max(THREADS_LEAST, THREADS_EACH * cpus):
                continue
            throttled, wait = cpu.throttled_ms or 0.0, cpu.wait_ms or 0.0
            own = sum(c.ms for c in cpu.culprits if c.kind == "server")
            # Levels C and D without a suspect: a long wait is taken for the threads' doing, a short one is not.
            unknown = not cpu.culprits and cpu.level in ("C", "D")
            enter, part, guess = ENTER, THREADS_PART, THREADS_UNKNOWN
            if facts.held(r.label):
                enter, part, guess = LEAVE, part / 2, guess / 2
            if unknown and wait / 1e3 / r.short_s >= guess:
                own = wait
            hurt = own + throttled
            if hurt / 1e3 / r.short_s < enter or hurt < part * (throttled + wait):
                continue
            title = f"{r.label} has {p.threads} threads for {_cpus(cpus)}"
            mine = f"waited {ms(own)} for threads of its own server"
            why = f"waited {ms(wait)} (who ran is not known)" if unknown else mine
            if cpu.throttled_ms is not None:
                why += f" and was held back {ms(throttled)}"
            evidence = f"its main thread {why} in {r.short_s:.0f} s"
            yield Verdict(r.label, "warning", title, evidence, advice.fewer_threads(p, len(facts.ranks)))


def _cpus(n: float) -> str:
    return f"{n:g} CPU" if n == 1 else f"{n:g} CPUs"


_SLOW = ("hardware slowdown", "hardware thermal", "software thermal", "power brake")


class _GpuSlow:
    id = "gpu-slowdown"
    raise_s = 2.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for g in facts.gpus:
            why = [x for x in g.throttle_reasons if x in _SLOW]
            if not why or not g.ranks:
                continue
            clocks = f"{g.sm_clock_mhz} of {g.sm_clock_max_mhz} MHz" if g.sm_clock_mhz else "clock not known"
            heat = f", {g.temperature_c} °C" if g.temperature_c is not None else ""
            title = f"GPU {g.index} slows itself down: {' and '.join(why)}"
            step = f"nvidia-smi -q -i {g.index} -d PERFORMANCE,TEMPERATURE,POWER, then look at cooling and power supply"
            yield Verdict(g.ranks[0], "warning", title, f"SM clock {clocks}{heat}", step)


CONTENTION_RULES = (_Preempted(), _PreemptedByServer(), _Throttled(), _Numa(), _Threads(), _GpuSlow())
