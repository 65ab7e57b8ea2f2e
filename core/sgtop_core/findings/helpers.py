"""The detokenizer or the tokenizer is at the end of its CPU: clients wait while all queues are empty (#29366)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, Verdict, percent

_FULL, _LEAVE = 0.9, 0.75


class _Helpers:
    id = "helper-cpu"
    raise_s = 3.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        known = [p for p in facts.processes if p.cpu_share is not None and p.role != "scheduler"]
        p = max(known, key=lambda x: x.cpu_share or 0.0, default=None)
        if p is None or (p.cpu_share or 0.0) < (_LEAVE if facts.held(None) else _FULL):
            return
        queued = sum((r.short.queue.waiting or 0) for r in facts.ranks)
        title = f"the {p.role} (pid {p.pid}) uses {percent(p.cpu_share)} of a CPU and can do no more"
        evidence = f"one Python process, {p.threads or '–'} threads; {queued} requests wait in the schedulers"
        if p.role.startswith("detokenizer"):
            step = "restart with --stream-interval 8: it then decodes a text every 8 tokens instead of every one"
        else:
            step = "restart with --tokenizer-worker-num 4"
        yield Verdict(None, "warning", title, evidence, step)


RULE = _Helpers()
