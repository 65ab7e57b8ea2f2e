"""A rank makes no step although it has requests; the ranks that wait, and the one they wait for (#17941)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, RankFacts, Verdict, span


class _Hung:
    id = "hung"
    raise_s = 0.0
    clear_s = 1.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        hung = [r for r in facts.ranks if r.short.state == "hung"]
        if not hung:
            return
        steps = [r.short.last_step for r in facts.ranks if r.short.last_step is not None]
        behind = [r for r in hung if r.short.last_step is not None and r.short.last_step < max(steps)]
        first = behind[0] if behind else hung[0]
        group = len(hung) > 1 and behind and len(behind) < len(hung)
        for r in hung if not group else behind:
            yield self._verdict(r, [o for o in hung if o not in behind] if group and r is first else [])

    def _verdict(self, r: RankFacts, waiting: list[RankFacts]) -> Verdict:
        age = r.short.last_step_age_s
        idle_for = span(age if age is not None else r.watched_s)
        title = f"{r.label} hangs: {r.short.message or f'no step for {idle_for}'}"
        evidence = f"last step {r.short.last_step}, {idle_for} ago"
        if waiting:
            names = ", ".join(o.label for o in waiting)
            evidence += f"; {names} at step {waiting[0].short.last_step} wait for it"
        pid = r.short.pid
        mend = f"py-spy dump --pid {pid}" if pid else "py-spy dump"
        if pid and "kill -CONT" in (r.short.message or ""):  # stopped by a signal: there is nothing to look for
            mend = f"kill -CONT {pid}"
        return Verdict(r.label, "critical", title, evidence, mend)


RULE = _Hung()
