"""A against B on a running server: a switch as it was started (A) and off (B), in turn, and whether it matters.

Rates drift by themselves (contexts grow, traffic changes), so B is compared with the two stretches of A around it:
A B A B A for two rounds. The interval is the bootstrap's, over rounds, of the median ratio, and not narrower than
Student's: a handful of rounds gives the bootstrap too little. There is no difference where it holds 1, where
the effect is below one percent, or where A differs as much from the A next to it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgtop_core.model.figures import Figures

MEASURES = {
    "step_ms": "decode step, ms",
    "tokens_per_s": "tokens/s",
    "gap_ms": "gap between steps, ms",
    "hit_ratio": "cache hit ratio",
}
RATIO = "B ÷ A: each B against the two A around it, the median over the rounds; not the ratio of the two columns."
NULL = "null"
DRAWS = 20_000
SMALL = 0.01
_T = (0.0, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.1)
"""Student's t, two-sided 95 %, by degrees of freedom; the last for all above."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure. ``ratio`` is B ÷ A, with its 95 % interval; None where it cannot be had."""

    measure: str
    a: float | None
    b: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    """``difference``, ``no difference`` or ``not measured``."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    switch: str
    rounds: int
    each_s: float
    rows: tuple[Comparison, ...]
    a: tuple[Figures, ...]
    b: tuple[Figures, ...]

    @property
    def difference(self) -> bool:
        """Whether any measure differs."""
        return any(r.verdict == "difference" for r in self.rows)


def compare(a: Sequence[Figures], b: Sequence[Figures]) -> tuple[Comparison, ...]:
    """Each measure: b[i] against a[i] and a[i + 1] around it."""
    return tuple(_compare(name, [getattr(f, name) for f in a], [getattr(f, name) for f in b]) for name in MEASURES)


def _compare(measure: str, a: Sequence[float | None], b: Sequence[float | None]) -> Comparison:
    ka, kb = [x for x in a if x is not None], [x for x in b if x is not None]
    middle_a = float(np.median(ka)) if ka else None
    middle_b = float(np.median(kb)) if kb else None
    logs = []
    for before, x, after in zip(a[:-1], b, a[1:], strict=True):
        if before and x and after and min(before, x, after) > 0:
            logs.append(math.log(x / math.sqrt(before * after)))
    if len(logs) < max(2, (len(b) + 1) // 2):
        if measure == "hit_ratio" and middle_a and middle_b == 0:  # forced misses: the ratio is zero, not unknown
            return Comparison(measure, middle_a, 0.0, 0.0, 0.0, 0.0, "difference")
        return Comparison(measure, middle_a, middle_b, None, None, None, "not measured")
    each = np.array(logs)
    draws = np.median(np.random.default_rng(1).choice(each, (DRAWS, each.size)), axis=1)
    half = _T[min(each.size - 1, len(_T) - 1)] * float(each.std(ddof=1)) / math.sqrt(each.size)
    low, high = np.percentile(draws, [2.5, 97.5])
    low, high = math.exp(min(low, each.mean() - half)), math.exp(max(high, each.mean() + half))
    ratio = math.exp(float(np.median(each)))
    # A against the A next to it is what this server does by itself: an effect that is no larger is none.
    noise = float(np.median([abs(math.log(y / x)) for x, y in itertools.pairwise(ka) if x > 0 and y > 0]))
    apart = not low <= 1.0 <= high and abs(math.log(ratio)) >= max(SMALL, noise)
    return Comparison(measure, middle_a, middle_b, ratio, low, high, "difference" if apart else "no difference")


def as_json(result: Result) -> dict[str, Any]:
    """For programs."""
    return {
        "switch": result.switch,
        "rounds": result.rounds,
        "each_s": result.each_s,
        "difference": result.difference,
        "measures": [
            {
                "measure": r.measure,
                "on": r.a,
                "off": r.b,
                "ratio": r.ratio,
                "low": r.low,
                "high": r.high,
                "verdict": r.verdict,
            }
            for r in result.rows
        ],
    }


def table(result: Result) -> str:
    """For people."""
    head = ("measure", "on (A)", "off (B)", "B ÷ A", "95 % interval", "")
    if result.switch == NULL:
        head = ("measure", "A", "B", "B ÷ A", "95 % interval", "")
    rows = [head]
    for r in result.rows:
        span = f"{r.low:.3f} to {r.high:.3f}" if r.low is not None and r.high is not None else "–"
        ratio = f"{r.ratio:.3f}" if r.ratio is not None else "–"
        rows.append((MEASURES[r.measure], _number(r.a), _number(r.b), ratio, span, r.verdict))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    said = "no difference" if not result.difference else "they differ"
    if all(r.verdict == "not measured" for r in result.rows):
        said = "nothing could be measured"
    return "\n".join(
        [*lines, RATIO, "", f"{result.switch}: {said} ({result.rounds} rounds of {result.each_s:g} s each)"]
    )


def _number(v: float | None) -> str:
    return "–" if v is None else f"{v:.4g}"
