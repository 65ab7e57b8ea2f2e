"""A against B on a running server: a switch as it was started (A) and off (B), in turn, and whether it matters.

Rates drift by themselves (contexts grow, traffic changes), so B is compared with the two stretches of A around it:
A B A B A for two rounds. The interval is the bootstrap's, over rounds, of the median ratio, and not narrower than
Student's: a handful of rounds gives the bootstrap too little. There is no difference where it holds 1, where
the effect is below one percent, or where A differs as much from the A next to it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sgtop_agent.wire import Frame, WireError

from sgtop_core.model.figures import KEEP_S, Figures, StepLog
from sgtop_core.model.snapshot import Snapshot
from sgtop_core.switches.control import Switches

MEASURES = {
    "step_ms": "decode step, ms",
    "tokens_per_s": "tokens/s",
    "gap_ms": "gap between steps, ms",
    "hit_ratio": "cache hit ratio",
}
NULL = "null"
SKIP = 3
"""Steps after a change that belong to neither side: compiling, an overlapped step that was launched before."""
DRAWS = 20_000
SMALL = 0.01
_T = (0.0, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.1)
"""Student's t, two-sided 95 %, by degrees of freedom; the last for all above."""
ARRIVE_S = 10.0
PENDING_S = 20.0
MARGIN_S = 20.0
"""A flip's own timer runs this much longer than the stretch: if this process hangs, the flip goes back."""


class AbError(Exception):
    """Why there is no comparison. ``busy``: the server was not under load."""

    def __init__(self, text: str, busy: bool = True) -> None:
        super().__init__(text)
        self.busy = busy


class Watched(Protocol):
    """What is needed of a session."""

    taps: list[Callable[[str, Frame, int], None]]
    switches: Switches

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    def hellos(self) -> dict[str, Frame | None]:
        """Every rank's hello."""

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """A command."""


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


class Logs:
    """A step log for each rank that leads a group, filled by a tap. Add it before anything is asked of it."""

    def __init__(self, session: Watched, keep_s: float = KEEP_S) -> None:
        self.leaders = [g.labels[0] for g in session.switches.groups()]
        hellos = session.hellos()
        self.of: dict[str, StepLog] = {}
        for label, hello in hellos.items():
            modes = (hello or {}).get("modes")
            self.of[label] = StepLog(modes if isinstance(modes, Mapping) else {}, keep_s)
        session.taps.append(self._tap)

    def _tap(self, label: str, frame: Frame, now: int) -> None:
        log = self.of.get(label)
        if log is not None and frame.get("k") == "ev":
            try:
                log.frame(frame)
            except (KeyError, WireError):
                pass  # the session says so itself

    def stretch(self, firsts: Mapping[str, int], since: int, until: int) -> Figures:
        """Figures of a stretch over all leaders: rates add up, the rest is their mean."""
        each = [self.of[label].stretch(firsts[label], since=since, until=until) for label in self.leaders]
        return each[0] if len(each) == 1 else _joined(each)


def _joined(each: Sequence[Figures]) -> Figures:
    def mean(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) / len(known) if known else None

    rates = [f.tokens_per_s for f in each if f.tokens_per_s is not None]
    return Figures(
        steps=sum(f.steps for f in each),
        seconds=max(f.seconds for f in each),
        step_ms=mean([f.step_ms for f in each]),
        tokens_per_s=sum(rates) if rates else None,
        gap_ms=mean([f.gap_ms for f in each]),
        hit_ratio=mean([f.hit_ratio for f in each]),
        graph_share=mean([f.graph_share for f in each]),
    )


def run(
    session: Watched, switch: str, rounds: int, each_s: float, say: Callable[[str], None] = lambda _: None
) -> Result:
    """Flip A B A B … A and compare.

    Raises:
        AbError: no load, or a flip was refused; everything is back then.
    """
    logs = Logs(session, 2 * each_s + KEEP_S)
    a: list[Figures] = []
    b: list[Figures] = []
    try:
        a.append(_measure(logs, _now(logs), each_s))
        for i in range(rounds):
            say(f"round {i + 1} of {rounds}: off")
            b.append(_measure(logs, _flip(session, logs, switch, each_s), each_s))
            say(f"round {i + 1} of {rounds}: on")
            a.append(_measure(logs, _back(session, logs, switch), each_s))
    finally:
        if switch != NULL:
            session.command(None, "toggle.back", {"switch": switch})
        session.taps.remove(logs._tap)
    return Result(switch, rounds, each_s, compare(a, b), tuple(a), tuple(b))


def _now(logs: Logs) -> dict[str, int]:
    """Leader → the step after the last that has arrived; waits for a first one."""
    end = time.monotonic() + ARRIVE_S
    out = {}
    for label in logs.leaders:
        while (last := logs.of[label].last()) is None:
            if time.monotonic() > end:
                raise AbError(f"{label} makes no steps: compare under the load that matters")
            time.sleep(0.02)
        out[label] = last + 1
    return out


def _flip(session: Watched, logs: Logs, switch: str, each_s: float) -> dict[str, int]:
    """Switch off; leader → the step at which it took effect."""
    if switch == NULL:
        return _now(logs)
    reply = session.command(None, "toggle", {"switch": switch, "on": False, "for_s": each_s + MARGIN_S + PENDING_S})
    if not reply.get("ok"):
        raise AbError(str(reply.get("error")), busy=False)
    if not session.switches.wait(switch, False, PENDING_S):
        raise AbError(f"{switch} did not take effect: the server makes no steps, or it was called off")
    return _steps(session)


def _back(session: Watched, logs: Logs, switch: str) -> dict[str, int]:
    if switch == NULL:
        return _now(logs)
    reply = session.command(None, "toggle.back", {"switch": switch})
    if not reply.get("ok"):
        raise AbError(str(reply.get("error")), busy=False)
    if not session.switches.wait(switch, True, PENDING_S):
        raise AbError(f"{switch} did not come back within {PENDING_S:.0f} s")
    return _steps(session)


def _steps(session: Watched) -> dict[str, int]:
    """Leader → N of the word in force."""
    return {name: int(state["word"][2]) for name, state in session.switches.list().items()}


def _measure(logs: Logs, firsts: Mapping[str, int], each_s: float) -> Figures:
    """A stretch of ``each_s`` from the steps ``firsts`` on, but the first few."""
    begin = {label: first + SKIP for label, first in firsts.items()}
    end = time.monotonic() + ARRIVE_S
    t0 = 0
    for label in logs.leaders:
        while (began := logs.of[label].began(begin[label])) is None:
            if time.monotonic() > end:
                raise AbError(f"{label} makes no steps: compare under the load that matters")
            time.sleep(0.02)
        t0 = max(t0, began)
    until = t0 + int(each_s * 1e9)
    time.sleep(max(0.0, (until - time.monotonic_ns()) / 1e9) + 0.25)  # the agent flushes every 50 ms
    figures = logs.stretch(begin, t0, until)
    if figures.steps < 3:
        raise AbError(f"{figures.steps} steps in {each_s:g} s: too few to compare; compare under load, or longer")
    return figures


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
    return "\n".join([*lines, "", f"{result.switch}: {said} ({result.rounds} rounds of {result.each_s:g} s each)"])


def _number(v: float | None) -> str:
    return "–" if v is None else f"{v:.4g}"
