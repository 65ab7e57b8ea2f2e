"""One DP rank has far more requests than the others (#6872)."""

from __future__ import annotations

from collections.abc import Iterable

from sgtop_core.findings.base import Facts, RankFacts, Verdict, whole

_RATIO, _RATIO_LEAVE, _MANY = 3.0, 2.0, 8


class _Imbalance:
    id = "dp-imbalance"
    raise_s = 4.0
    clear_s = 5.0

    def check(self, facts: Facts) -> Iterable[Verdict]:
        load: dict[int, int] = {}
        names: dict[int, RankFacts] = {}
        for r in facts.ranks:
            dp = (r.hello.get("rank") or {}).get("dp")
            q = r.short.queue
            if isinstance(dp, int) and q.running is not None and q.waiting is not None and dp not in load:
                load[dp], names[dp] = q.running + q.waiting, r
        if len(load) < 2:
            return
        most = max(load, key=lambda d: load[d])
        rest = [n for d, n in load.items() if d != most]
        mean = sum(rest) / len(rest)
        ratio = load[most] / max(mean, 1.0)
        label = names[most].label
        if load[most] < _MANY or ratio < (_RATIO_LEAVE if facts.held(label) else _RATIO):
            return
        method = names[most].args.get("load_balance_method")
        title = f"{label} has {whole(load[most])} requests, the other DP ranks {mean:.1f} on average ({ratio:.1f}×)"
        evidence = "requests by DP rank: " + ", ".join(f"DP{d} {n}" for d, n in sorted(load.items()))
        want = "total_tokens" if method == "total_requests" else "total_requests"
        step = f"restart with --load-balance-method {want} (now {method or 'unknown'})"
        yield Verdict(label, "warning", title, evidence, step)


RULE = _Imbalance()
