"""One long prompt, chunk after chunk, while others wait (PR 34623)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, Verdict, flag, percent, span, whole

_CHUNKS = 5


class _LongPrompt:
    id = "long-prompt"
    raise_s = 3.0
    clear_s = 3.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            m = r.mode("EXTEND")
            chunk = r.args.get("effective_chunked_prefill_size") or r.args.get("chunked_prefill_size")
            q = r.short.queue
            if m is None or not isinstance(chunk, int) or chunk <= 0 or m.tokens_per_s is None or not q.waiting:
                continue
            per_step = m.tokens_per_s / m.steps_per_s if m.steps_per_s else 0.0
            share = r.time_share(("EXTEND",))
            # full chunks of one request: the batch has one row, and hardly a token comes from the cache
            if m.batch_max != 1 or m.steps < _CHUNKS or per_step < 0.95 * chunk or share < 0.5:
                continue
            title = f"one long prompt after another: {whole(m.steps)} full chunks in a row, {q.waiting} requests wait"
            evidence = (
                f"EXTEND bs 1 × {whole(per_step)} tokens took {percent(share)} of the last {span(r.short_s)}; "
                f"oldest queued request {span(q.oldest_wait_s or 0)}"
            )
            interval = flag(r.args, "prefill_decode_interval")
            if interval and not r.args.get("prefill_decode_interval"):
                step = f"restart with {interval} 8, or send long prompts to a replica of their own"
            else:
                step = f"restart with --chunked-prefill-size {max(chunk // 2, 256)}, or give long prompts a replica"
            yield Verdict(group.name, "warning", title, evidence, step)


RULE = _LongPrompt()
