"""Decode runs eager because its batch is larger than the largest captured graph, or for no visible reason.

SGLang says nothing about it in its log; time per output token grows several times (#33483, #5527, #6669).
"""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import DECODES, Facts, RankFacts, Verdict, flag, ms, percent, whole
from sgtop_core.model.snapshot import Mode

_ENTER, _LEAVE = 0.2, 0.05
"""Share of eager steps."""


class _Eager:
    id = "decode-eager"
    raise_s = 2.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            m = r.mode(*DECODES)
            graph = r.hello.get("graph") or {}
            if m is None or m.graph_share is None or m.steps < 5 or not graph.get("decode"):
                continue
            if 1 - m.graph_share >= (_LEAVE if facts.held(group.name) else _ENTER):
                yield self._verdict(facts, group.name, r, m)

    def _verdict(self, facts: Facts, name: str | None, r: RankFacts, m: Mode) -> Verdict:
        top = r.short.graph_max_bs
        eager = 1 - (m.graph_share or 0.0)
        batch = m.batch_p50 or 0
        together = 0.0
        if r.args.get("enable_dp_attention"):
            sizes = [x.batch_p50 or 0 for x in (o.mode(*DECODES) for o in facts.ranks) if x is not None]
            together = sum(sizes) if len(sizes) > 1 else 0.0
        evidence = f"{percent(eager)} of {whole(m.steps)} decode steps ran eager, step p50 {ms(m.step_ms.p50)}"
        severity = "critical" if eager > 0.5 else "warning"
        if top is not None and (m.batch_max or 0) > top:
            title = f"decode runs eager: bs {whole(batch)} > largest captured {top}"
            need = m.batch_max or batch
        elif top is not None and together > top:
            n = len([o for o in facts.ranks if o.mode(*DECODES)])
            title = f"decode runs eager: global batch {whole(together)} ({n} ranks) > largest captured {top}"
            need = together
        else:
            title = f"decode runs eager although bs {whole(batch)} is captured (up to {whole(top)})"
            step = (
                "look for what rules a graph out in the requests of this moment: hidden states, LoRA, input embeddings"
            )
            return Verdict(name, "warning", title, evidence, step)
        option = flag(r.args, "cuda_graph_max_bs_decode", "cuda_graph_max_bs") or "--cuda-graph-max-bs"
        limit = r.args.get("effective_max_running_requests") or r.args.get("max_running_requests")
        want = _round_up(need)
        if isinstance(limit, int) and limit > 0 and not together:
            want = min(want, max(limit, int(need)))
        return Verdict(name, severity, title, evidence, f"restart with {option} {want}")


def _round_up(bs: float) -> int:
    """The next size that SGLang captures by default: multiples of 8 up to 256, then of 16."""
    unit = 8 if bs <= 256 else 16
    return -(-int(bs) // unit) * unit


RULE = _Eager()
