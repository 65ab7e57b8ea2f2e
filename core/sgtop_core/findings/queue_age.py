"""A request waits far longer than the others: starved by the policy, or by a server that is too small (#31953)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, Verdict, span, whole

_OLD_S, _LEAVE_S, _WORST_S = 15.0, 5.0, 60.0


class _QueueAge:
    id = "queue-age"
    raise_s = 1.0
    clear_s = 3.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            q = r.short.queue
            age = q.oldest_wait_s
            if age is None or not q.waiting or age < (_LEAVE_S if facts.held(group.name) else _OLD_S):
                continue
            policy = r.args.get("schedule_policy")
            title = f"the oldest queued request has waited {span(age)}"
            rate = r.short.finished_per_s
            evidence = (
                f"{whole(q.waiting)} waiting, {whole(q.running)} running, policy {policy or 'unknown'}"
                + (f", {rate:.1f} requests/s finish" if rate is not None else "")
                + (f"; at that rate the queue takes {span(q.waiting / rate)}" if rate else "")
            )
            moves = rate is not None and rate > 0 and age > 3 * q.waiting / rate
            if policy in ("lpm", "dfs-weight", "lof", "random") and moves:
                step = "restart with --schedule-policy fcfs: the policy lets others pass"
            else:
                step = "more requests come than finish: add a replica, or shed load with --max-queued-requests"
            yield Verdict(group.name, "critical" if age >= _WORST_S else "warning", title, evidence, step)


RULE = _QueueAge()
