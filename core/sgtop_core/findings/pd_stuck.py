"""Prefill/decode disaggregation: requests stay in a queue of the hand-over and nothing runs (#6857, #10110)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, Verdict

_WORDS = {
    "bootstrap": "wait for a decode server to shake hands",
    "inflight": "are being sent and do not arrive",
    "prealloc": "wait for KV memory on this decode server",
    "transfer": "wait for their KV from the prefill server",
}


class _PdStuck:
    id = "pd-stuck"
    raise_s = 10.0
    clear_s = 2.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            stuck = {k: n for k, n in r.short.queue.pd.items() if n > 0 and k in _WORDS}
            if not stuck or r.short.modes:
                continue
            name = max(stuck, key=lambda k: stuck[k])
            title = f"{stuck[name]} requests {_WORDS[name]}, and no step runs"
            evidence = ", ".join(f"{k} {n}" for k, n in r.short.queue.pd.items())
            if name == "prealloc":
                step = "add decode memory: restart the decode server with a higher --mem-fraction-static"
            else:
                step = "look at the peer's log and at --disaggregation-ib-device: the hand-over does not finish"
            yield Verdict(group.name, "critical", title, evidence, step)


RULE = _PdStuck()
