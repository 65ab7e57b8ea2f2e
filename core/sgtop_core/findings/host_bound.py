"""The GPU waits for the host before decode steps; names the scheduler stage that it waits for (#5593, #2076)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import DECODES, Facts, RankFacts, Verdict, ms, percent
from sgtop_core.model.causes import GC, NO_WORK, PAUSED, PREEMPTED, SAMPLING, THROTTLED, WAITING

_NOT_STAGES = (NO_WORK, PAUSED, GC, PREEMPTED, THROTTLED, SAMPLING)
_SHARE, _SHARE_LEAVE = 0.15, 0.10
"""Of the time of decode steps, spent in gaps that a stage of the host explains."""
_MIN_MS = 0.3


class _HostBound:
    id = "decode-host-bound"
    raise_s = 3.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            found = [f for r in group.ranks if (f := _look(r, facts.held(group.name))) is not None]
            if found:
                _, title, evidence, step = max(found)
                if len(group.ranks) > 1:
                    evidence += f"; {len(found)} of {len(group.ranks)} ranks"
                yield Verdict(group.name, "warning", title, evidence, step)


def _look(r: RankFacts, held: bool) -> tuple[float, str, str, str] | None:
    """(share of step time, title, evidence, next step), or None where the host is not what decode waits for."""
    g = r.short.gaps
    mode = next((m for m in DECODES if m in r.short.modes), None)
    if g is None or g.label != "gpu" or mode is None or mode not in g.by_mode:
        return None
    q, steps = g.by_mode[mode], r.short.modes[mode]
    if q.count < 20 or q.p50 is None or q.p50 < _MIN_MS or steps.step_ms.total <= 0:
        return None
    causes = g.causes_by_mode_ms.get(mode, {})
    stages = {c: v for c, v in causes.items() if c not in _NOT_STAGES and not c.startswith(WAITING)}
    host = sum(stages.values())
    share = host / steps.step_ms.total
    if share < (_SHARE_LEAVE if held else _SHARE):
        return None
    top = max(stages, key=lambda c: stages[c])
    if stages[top] < max((v for c, v in causes.items() if c in _NOT_STAGES and c != NO_WORK), default=0.0):
        return None  # something else takes more; it has a finding of its own
    parts = ", ".join(f"{c} {percent(v / host)}" for c, v in sorted(stages.items(), key=lambda x: -x[1])[:3])
    title = f"decode waits for the host: {ms(q.p50)} between forwards, mostly {top}"
    evidence = f"gaps p50 {ms(q.p50)}, p99 {ms(q.p99)}, {percent(share)} of decode step time: {parts}"
    return share, title, evidence, _step(r, top)


def _step(r: RankFacts, stage: str) -> str:
    if r.args.get("disable_overlap_schedule"):
        return "restart without --disable-overlap-schedule: the host's work then hides behind the GPU's"
    if r.args.get("disable_cuda_graph"):
        return "restart with CUDA graphs (without --disable-cuda-graph): launches cost the host most of a step"
    return {
        "process_batch_result": "restart with --stream-interval 8: fewer results to hand on a step",
        "recv_requests": "look at the tokenizer's process and at the sizes of requests; restart with "
        "--scheduler-recv-interval 4",
        "process_queue": "look at structured outputs: a grammar that is compiled in the scheduler stops every step",
        "get_next_batch_to_run": "restart with --schedule-policy fcfs: lpm sorts the whole queue",
    }.get(stage, f"py-spy dump --pid {r.short.pid} (what {stage} does on the host)")


RULE = _HostBound()
