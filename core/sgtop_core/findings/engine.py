"""Runs the rules once a second and remembers: a finding is raised when it has held for a while, latched while it
holds, taken down when it has been gone for a while, kept as ended for a minute, and logged both times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sgtop_core.findings.base import Facts, RankFacts, Rule, Verdict, span
from sgtop_core.findings.rules import RULES
from sgtop_core.model.model import Model
from sgtop_core.model.rank_view import RankView
from sgtop_core.model.snapshot import Alert
from sgtop_core.model.windows import level

EVERY_NS = 1_000_000_000
KEEP_ENDED_S = 60.0
_SEVERITY = {"critical": 0, "warning": 1, "info": 2}
_SHORT, _LONG = level(5.0), level(60.0)


@dataclass(slots=True)
class _Held:
    verdict: Verdict
    since: float
    seen: float
    raised: bool = False
    ended: float | None = None


class Engine:
    """Keeps the findings of one server."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = rules
        self._held: dict[tuple[str, str | None], _Held] = {}
        self._next = 0
        self._unix = 0.0
        self._broken: set[str] = set()
        self.log: list[str] = []
        """Lines for the log since ``drain_log`` was last called."""

    def look(self, model: Model, now: int, unix: float) -> tuple[Alert, ...] | None:
        """Run the rules if a second has passed.

        Returns:
            All findings, the worst first, those that ended at the end; None where it was too early to look.
        """
        if now < self._next:
            return None
        self._next = now + EVERY_NS
        return self.check(facts(model, now, unix))

    def check(self, f: Facts) -> tuple[Alert, ...]:
        """Run the rules on ``f``."""
        self._unix = f.unix
        for rule in self._rules:
            try:
                found = list(rule.check(f.holding(rule.id, self._active)))
            except Exception as e:  # one rule that trips must not take the screen with it
                if rule.id not in self._broken:
                    self._broken.add(rule.id)
                    self.log.append(f"finding {rule.id} failed and is off: {type(e).__name__}: {e}")
                found = []
            self._update(rule, found, f.unix)
        for key in [k for k, h in self._held.items() if h.ended is not None and f.unix - h.ended > KEEP_ENDED_S]:
            del self._held[key]
        return self.alerts()

    def _active(self, rule: str, rank: str | None) -> bool:
        h = self._held.get((rule, rank))
        return h is not None and h.raised and h.ended is None

    def _update(self, rule: Rule, found: Sequence[Verdict], unix: float) -> None:
        here = {v.rank for v in found}
        for v in found:
            key = (rule.id, v.rank)
            h = self._held.get(key)
            if h is None or h.ended is not None:
                h = self._held[key] = _Held(v, unix, unix)
            h.verdict, h.seen = v, unix
            if not h.raised and unix - h.since >= rule.raise_s:
                h.raised = True
                self.log.append(f"{_clock(unix)} began: {_named(v)}")
        for (name, rank), h in list(self._held.items()):
            if name != rule.id or rank in here or h.ended is not None:
                continue
            if not h.raised:
                del self._held[name, rank]
            elif unix - h.seen >= rule.clear_s:
                h.ended = unix
                self.log.append(f"{_clock(unix)} ended after {unix - h.since:.0f} s: {_named(h.verdict)}")

    def alerts(self) -> tuple[Alert, ...]:
        """All findings as they stand."""
        shown = [(key, h) for key, h in self._held.items() if h.raised]
        shown.sort(key=lambda kh: (kh[1].ended is not None, _SEVERITY.get(kh[1].verdict.severity, 3), kh[1].since))
        return tuple(self._alert(rule, rank, h) for (rule, rank), h in shown)

    def _alert(self, rule: str, rank: str | None, h: _Held) -> Alert:
        v, active, quiet_s = h.verdict, h.ended is None, max(self._unix - h.seen, 0.0)
        return Alert(
            id=rule,
            severity=v.severity,
            since=h.since,
            rank=rank,
            title=v.title,
            evidence=_dated(v.evidence, quiet_s) if active else v.evidence,
            next=v.next,
            active=active,
            quiet_s=quiet_s,
        )

    def drain_log(self) -> list[str]:
        """Lines since the last call."""
        lines, self.log = self.log, []
        return lines


def _named(v: Verdict) -> str:
    return v.title if v.rank is None or v.rank in v.title else f"{v.rank}: {v.title}"


def _dated(evidence: str, quiet_s: float) -> str:
    """Evidence that is no longer fresh says so: the panels beside it show what is now."""
    if round(quiet_s) < 1:
        return evidence
    return f"{evidence}; that was {span(quiet_s)} ago" if evidence else f"{span(quiet_s)} ago"


def _clock(unix: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix))


def facts(model: Model, now: int, unix: float) -> Facts:
    """What the rules see of a model at ``now`` (ns)."""
    ranks = []
    shorts, longs = model.ranks(_SHORT, now), model.ranks(_LONG, now)
    for (label, slot), short, long in zip(model.slots.items(), shorts, longs, strict=True):
        state = slot.state
        if state is None:
            continue
        args = state.hello.get("args")
        ranks.append(
            RankFacts(
                short=short,
                long=long,
                short_s=RankView.covered(state, _SHORT),
                long_s=RankView.covered(state, _LONG),
                hello=state.hello,
                args=args if isinstance(args, dict) else {},
                mode_age_s={state.mode_name(m): (now - t) / 1e9 for m, t in state.mode_last.items()},
                watched_s=(now - state.start) / 1e9,
            )
        )
        assert short.rank == label
    return Facts(unix, model.server, tuple(ranks), model.processes, model.gpus)
