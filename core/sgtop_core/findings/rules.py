"""The list of rules, in no order that matters: findings are shown by severity and age."""

from __future__ import annotations

from sgtop_core.contention.rules import CONTENTION_RULES
from sgtop_core.findings import (
    admission,
    eager,
    gc_stops,
    held_up,
    helpers,
    hit_rate,
    host_bound,
    hung,
    imbalance,
    long_prompt,
    pd_stuck,
    queue_age,
    starved,
    tiny_prefills,
)
from sgtop_core.findings.base import Rule

RULES: tuple[Rule, ...] = (
    hung.RULE,
    eager.RULE,
    starved.RULE,
    gc_stops.RULE,
    held_up.RULE,
    host_bound.RULE,
    admission.RULE,
    queue_age.RULE,
    long_prompt.RULE,
    tiny_prefills.RULE,
    imbalance.RULE,
    pd_stuck.RULE,
    helpers.RULE,
    hit_rate.RULE,
    *CONTENTION_RULES,
)
