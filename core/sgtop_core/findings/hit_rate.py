"""The prefix cache is on and nothing ever comes from it (#21158, #30755)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import PREFILLS, Facts, Verdict, whole

_REQUESTS, _TOKENS = 40, 10_000


class _HitRate:
    id = "no-cache-hits"
    raise_s = 2.0
    clear_s = 2.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        for group in facts.groups():
            r = group.leader
            if r.args.get("disable_radix_cache") is not False:
                continue
            modes = [r.long.modes[m] for m in PREFILLS if m in r.long.modes]
            steps = sum(m.steps for m in modes)
            prompts = sum((m.tokens_per_s or 0.0) * r.long_s for m in modes)
            if steps < _REQUESTS or prompts < _TOKENS or any(m.hit_ratio for m in modes):
                continue
            page = r.args.get("page_size")
            title = "prefix cache on, hit rate 0"
            evidence = f"0 of {whole(prompts)} prompt tokens in {whole(steps)} prefill steps came from the cache"
            if isinstance(page, int) and page > 16:
                step = f"restart with --page-size 16 or less: prefixes shorter than a page ({page} tokens) never hit"
            else:
                step = "see whether prompts begin with something unique (time, id): only equal beginnings are shared"
            yield Verdict(group.name, "info", title, evidence, step)


RULE = _HitRate()
