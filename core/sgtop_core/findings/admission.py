"""Requests wait although memory is free: admission is limited by something else (#7133)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import PREFILLS, Facts, Verdict, percent, whole

_WAITING, _USED = 8, 0.7


class _Admission:
    id = "admission-limited"
    raise_s = 5.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            q, used = r.short.queue, r.short.kv_usage
            if q.waiting is None or q.running is None or used is None or not r.short.modes:
                continue
            held = facts.held(group.name)
            if q.waiting < (1 if held else _WAITING) or used > (_USED + 0.1 if held else _USED):
                continue
            if r.time_share(PREFILLS) > 0.5:
                continue  # prefill takes its time: the queue moves as fast as it can be computed
            limit = r.args.get("effective_max_running_requests") or r.args.get("max_running_requests")
            title = f"{whole(q.waiting)} queued while {percent(1 - used)} of the KV memory is free"
            evidence = f"{whole(q.running)} running (limit {whole(limit) if limit else 'unknown'}), KV {percent(used)}"
            if isinstance(limit, int) and limit > 0 and q.running >= 0.95 * limit:
                step = f"restart with --max-running-requests {2 * limit}"
            elif q.grammar:
                step = f"{q.grammar} wait for a grammar: look at the grammar backend's compile time"
            else:
                step = "restart with --schedule-conservativeness 0.3: it reserves less for the output of each request"
            yield Verdict(group.name, "warning", title, evidence, step)


RULE = _Admission()
