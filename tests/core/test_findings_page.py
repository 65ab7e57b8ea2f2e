"""docs/findings.md and the rules say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sgtop_core.findings.base import Rule
from sgtop_core.findings.rules import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "findings.md"
ROWS = {
    cells[0].strip("`"): cells
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
    for cells in [[c.strip() for c in line.strip("|").split("|")]]
}


def test_every_rule_has_its_row_and_every_row_its_rule() -> None:
    assert sorted(ROWS) == sorted(r.id for r in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_the_times_on_the_page_are_the_rules_own(rule: Rule) -> None:
    shown, gone = ROWS[rule.id][-2:]
    assert re.fullmatch(r"[\d.]+ s", shown)
    assert float(shown.removesuffix(" s")) == rule.raise_s
    assert float(gone.removesuffix(" s")) == rule.clear_s
