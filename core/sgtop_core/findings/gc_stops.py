"""Python's garbage collector stops the scheduler (PR 9241, PR 36366, #30596, PR 28067)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, Verdict, ms, percent, span, whole

_SHARE, _SHARE_LEAVE = 0.02, 0.01
_LONG_MS = 80.0


class _GcStops:
    id = "gc-stops"
    raise_s = 0.0
    clear_s = 15.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for r in facts.ranks:
            short, long = r.short.gc, r.long.gc
            if short is None or long is None or short.count == 0 or r.short_s <= 0:
                continue
            share = short.total_ms / 1e3 / r.short_s
            held = facts.held(r.label)
            often = share >= (_SHARE_LEAVE if held else _SHARE) and short.total_ms >= 40
            stops = (short.max_ms or 0) >= _LONG_MS and (held or long.count >= 2 or (short.max_ms or 0) >= 400)
            busy = sum(m.steps for m in r.short.modes.values()) > 0
            if not busy or not (often or stops):
                continue
            oldest = max(long.by_generation, default=0)
            share_long = long.total_ms / 1e3 / r.long_s if r.long_s > 0 else 0.0
            gap = r.short.gaps.causes_ms.get("gc", 0.0) if r.short.gaps else 0.0
            evidence = (
                f"{whole(long.count)} collection{'' if long.count == 1 else 's'} in {span(r.long_s)} "
                f"(oldest generation {oldest}), "
                f"longest {ms(long.max_ms)}, {percent(share_long)} of the time; {ms(gap)} of gaps in {span(r.short_s)}"
            )
            title = f"garbage collection stops the scheduler for up to {ms(long.max_ms)}"
            severity = "critical" if share >= 0.1 or (short.max_ms or 0) >= 1000 else "warning"
            yield Verdict(r.label, severity, title, evidence, f"curl -X POST {facts.url}/freeze_gc")


RULE = _GcStops()
