"""Many prefills with almost nothing to compute: each costs a launch and holds decode up (#6291)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, Verdict, percent, whole

_NEW, _RATIO, _RATE, _SHARE = 64.0, 30.0, 2.0, 0.15


class _TinyPrefills:
    id = "tiny-prefills"
    raise_s = 3.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            m = r.mode("EXTEND")
            if m is None or m.tokens_per_s is None or m.cached_tokens_per_s is None or m.steps_per_s <= 0:
                continue
            new, cached = m.tokens_per_s / m.steps_per_s, m.cached_tokens_per_s / m.steps_per_s
            share = r.time_share(("EXTEND",))
            easier = 0.5 if facts.held(group.name) else 1.0
            if new > _NEW / easier or cached < new * _RATIO * easier:
                continue
            if m.steps_per_s < _RATE * easier or share < _SHARE * easier:
                continue
            title = f"prefills are tiny: {whole(new)} new tokens a step beside {whole(cached)} cached"
            evidence = (
                f"{m.steps_per_s:.1f} EXTEND steps/s of bs {whole(m.batch_p50)} take {percent(share)} of the time; "
                f"step p50 {m.step_ms.p50 or 0:.1f} ms is launch cost, not compute"
            )
            if r.args.get("enable_mixed_chunk"):
                step = "gather short turns on the client's side, or restart with --scheduler-recv-interval 4"
            else:
                step = "restart with --enable-mixed-chunk, so that they ride along with decode steps"
            yield Verdict(group.name, "warning", title, evidence, step)


RULE = _TinyPrefills()
