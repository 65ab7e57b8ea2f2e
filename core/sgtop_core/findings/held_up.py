"""One rank of a group holds the others up between forwards; what it does meanwhile is the evidence."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.contention import advice
from sgtop_core.findings.base import Facts, Group, RankFacts, Verdict, ms, percent
from sgtop_core.model.causes import BLOCKED, GC, PREEMPTED, THROTTLED, WAITING

_SHARE, _SHARE_LEAVE, _CRITICAL = 0.02, 0.01, 0.10


class _HeldUp:
    id = "rank-holds-up"
    raise_s = 1.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            for r in group.ranks:
                waited = {o.label: w for o in group.ranks if (w := _waited(o, r.label)) > 0}
                most = max(waited.values(), default=0.0)
                share = most / 1e3 / r.short_s if r.short_s > 0 else 0.0
                if share >= (_SHARE_LEAVE if facts.held(r.label) else _SHARE):
                    yield _verdict(facts, group, r, waited, share)


def _waited(r: RankFacts, whom: str) -> float:
    return r.short.gaps.causes_ms.get(WAITING + whom, 0.0) if r.short.gaps is not None else 0.0


def _verdict(facts: Facts, group: Group, r: RankFacts, waited: dict[str, float], share: float) -> Verdict:
    others = len(group.ranks) - 1
    who = next(iter(waited)) if len(waited) == 1 else f"{len(waited)} of {others} others"
    title = f"{r.label} holds up {who}: they wait {ms(max(waited.values()))} in {r.short_s:.0f} s between forwards"
    did = r.short.holds_up_ms
    total = sum(did.values())
    parts = ", ".join(f"{c} {percent(v / total)}" for c, v in list(did.items())[:3]) if total else "not known"
    waits = ", ".join(f"{name} {ms(v)}" for name, v in sorted(waited.items(), key=lambda kv: -kv[1])[:4])
    evidence = f"waited for {r.label}: {waits}; meanwhile {r.label} was: {parts}"
    severity = "critical" if share >= _CRITICAL else "warning"
    return Verdict(r.label, severity, title, evidence, _step(facts, r, next(iter(did), "")))


def _step(facts: Facts, r: RankFacts, cause: str) -> str:
    """What would shorten that which the rank mostly did."""
    cpu = r.short.cpu
    if cause == PREEMPTED and cpu is not None:
        others = [
            o.short.cpu.place
            for o in facts.ranks
            if o is not r and o.short.cpu is not None and o.short.cpu.place is not None
        ]
        if cpu.culprits and cpu.culprits[0].kind != "server":
            step = advice.move_culprit(cpu.culprits[0], cpu.place, others)
            return step.replace("SCHEDULER_PID", str(r.short.pid))
        return advice.pin_rank(r.short.pid, cpu.place, others)
    if cause == THROTTLED and cpu is not None:
        return advice.raise_quota(cpu, r.short.pid)
    if cause == GC:
        return f"curl -X POST {facts.url}/freeze_gc"
    what = "what it sleeps in" if cause == BLOCKED else f"what {cause} does" if cause else "what it does"
    return f"py-spy dump --pid {r.short.pid} ({what} on {r.label})"


RULE = _HeldUp()
