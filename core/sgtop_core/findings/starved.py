"""Running requests wait for a decode step because prefills always come first (#32549, PR 40443)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import PREFILLS, Facts, RankFacts, Verdict, flag, span, whole

_DECODES = ("DECODE", "MIXED", "TARGET_VERIFY")
_SILENT_S = 5.0
_FEW = 0.05
"""Decode steps for each prefill step; 36 for 2,863 is 0.013."""


class _Starved:
    id = "decode-starved"
    raise_s = 2.0
    clear_s = 3.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            running = r.short.queue.running or 0
            disaggregated = str(r.args.get("disaggregation_mode") or "null") == "prefill"
            if disaggregated or r.mode(*PREFILLS) is None:
                continue
            silent = min((r.mode_age_s[m] for m in _DECODES if m in r.mode_age_s), default=r.watched_s)
            prefills = sum(r.long.modes[m].steps for m in PREFILLS if m in r.long.modes and m != "MIXED")
            decodes = sum(r.long.modes[m].steps for m in _DECODES if m in r.long.modes)
            held = facts.held(group.name)
            # What the latest prefill made may be finished already (one token out): it waits for nothing.
            fresh = max((r.long.modes[m].batch_max or 0 for m in PREFILLS if m in r.long.modes), default=0)
            if running < (1 if held else 4) or running <= fresh:
                continue
            if silent >= _SILENT_S:
                title = f"no decode step for {span(silent)} with {whole(running)} running"
            elif prefills >= 20 and decodes < prefills * (_FEW * 2 if held else _FEW):
                counts = f"{whole(decodes)} decode against {whole(prefills)} prefill steps"
                title = f"decode is starved: {counts} with {whole(running)} running"
            else:
                continue
            waiting = r.short.queue.waiting or 0
            evidence = (
                f"{whole(prefills)} prefill and {whole(decodes)} decode steps in the last {span(r.long_s)}; "
                f"{whole(running)} running, {whole(waiting)} waiting"
            )
            yield Verdict(group.name, "critical" if silent >= _SILENT_S else "warning", title, evidence, _step(r))


def _step(r: RankFacts) -> str:
    interval = flag(r.args, "prefill_decode_interval")
    if interval and not r.args.get("prefill_decode_interval"):
        return f"restart with {interval} 8 (decode steps after each prefill)"
    if not r.args.get("enable_mixed_chunk"):
        return "restart with --enable-mixed-chunk, so that decode rides along with prefill chunks"
    chunk = r.args.get("effective_chunked_prefill_size") or r.args.get("chunked_prefill_size")
    half = f" {max(int(chunk) // 2, 256)}" if isinstance(chunk, int) and chunk > 0 else " 2048"
    return f"restart with --chunked-prefill-size{half}"


RULE = _Starved()
