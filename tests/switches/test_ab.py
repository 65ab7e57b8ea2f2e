"""Figures of stretches, the comparison of A and B, and what a snapshot says of flips."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_agent.wire import Frame, WireError, events
from sgtop_core.jsonout import line
from sgtop_core.model.figures import NOTHING, Figures, StepLog
from sgtop_core.model.model import Model
from sgtop_core.recording.feed import MODEL_KINDS
from sgtop_core.schema import schema
from sgtop_core.simulate.loop import hello
from sgtop_core.switches import ab

MS = 1_000_000
MODES = {"EXTEND": 1, "DECODE": 2}
T0 = 1_000_000 * MS


def steps(first: int, n: int, ms: float, *, t: int = T0, graph: int = 1, bs: int = 4, prefill: bool = False) -> Frame:
    """``n`` steps of ``ms`` each, half of it inside run_batch; decode, or prefill of 60 tokens and 40 cached."""
    length = int(ms * MS)
    begin = [t + i * length for i in range(n)]
    return events(
        "step",
        {
            "ct": list(range(first, first + n)),
            "mode": [1 if prefill else 2] * n,
            "t0": begin,
            "t1": [b + length // 2 for b in begin],
            "bs": [bs] * n,
            "tokens": [60 if prefill else bs] * n,
            "decode_tokens": [0 if prefill else bs] * n,
            "cached": [40 if prefill else 0] * n,
            "graph": [graph] * n,
            "hook_ns": [-1] * n,
        },
    )


def unpacked(frame: Frame) -> Frame:
    return {**frame, "c": {k: memoryview(v) for k, v in frame["c"].items()}}


def log(*frames: Frame) -> StepLog:
    made = StepLog(MODES)
    for frame in frames:
        made.frame(unpacked(frame))
    return made


def test_figures_of_a_stretch() -> None:
    made = log(steps(1, 100, 10), steps(101, 10, 40, t=T0 + 1000 * MS, prefill=True))
    f = made.stretch(1)
    assert (f.steps, f.step_ms, f.gap_ms, f.graph_share) == (110, 10.0, 5.0, 1.0)
    assert f.hit_ratio == pytest.approx(0.4)
    assert f.tokens_per_s == pytest.approx(400 / (1.0 + 9 * 0.04))
    half = made.stretch(11, 31)
    assert (half.steps, half.seconds, half.hit_ratio) == (20, 0.19, None)
    assert half.tokens_per_s == pytest.approx(400)
    assert made.stretch(200) == NOTHING
    assert made.stretch(1, since=T0 + 100 * MS, until=T0 + 200 * MS).steps == 10
    assert made.last() == 110
    assert made.began(3) == T0 + 20 * MS
    assert made.began(500) is None


def test_gaps_are_the_gpus_where_it_is_timed_and_tokens_those_accepted() -> None:
    n = 20
    gpu = [T0 + i * 10 * MS for i in range(n)]
    forwards = events(
        "forward",
        {
            "ct": list(range(1, n + 1)),
            "runner": [0] * n,
            "mode": [2] * n,
            "t0": gpu,
            "t1": gpu,
            "gpu0": gpu,
            "gpu1": [g + 9 * MS for g in gpu],
            "gpu2": gpu,
            "bs": [4] * n,
            "tokens": [4] * n,
            "graph": [1] * n,
        },
    )
    results = events("result", {"ct": list(range(1, n + 1)), "t": gpu, "accepted": [8] * n, "finished": [0] * n})
    f = log(steps(1, n, 10), forwards, results).stretch(1)
    assert f.gap_ms == 1.0
    assert f.tokens_per_s == pytest.approx(800)


def test_old_steps_are_forgotten() -> None:
    made = StepLog(MODES, keep_s=2.0)
    for i in range(50):
        made.frame(unpacked(steps(1 + 10 * i, 10, 10, t=T0 + i * 100 * MS)))
    assert made.stretch(0).steps <= 220
    assert made.last() == 500


# --- comparing --------------------------------------------------------------------------------------------------------


def figures(step: float | None, hit: float | None = None) -> Figures:
    return Figures(100, 1.0, step, None if step is None else 1000 / step, step and step / 10, hit)


def verdicts(a: list[Figures], b: list[Figures]) -> dict[str, ab.Comparison]:
    return {c.measure: c for c in ab.compare(a, b)}


def test_a_large_effect_is_found() -> None:
    found = verdicts([figures(6.0 + i / 100) for i in range(6)], [figures(40.0 - i / 10) for i in range(5)])
    step = found["step_ms"]
    assert step.verdict == "difference"
    assert step.ratio == pytest.approx(6.6, rel=0.02)
    assert step.low is not None
    assert step.high is not None
    assert 6 < step.low < step.high < 7
    assert found["tokens_per_s"].verdict == "difference"
    assert found["hit_ratio"].verdict == "not measured"


def test_drift_is_no_difference() -> None:
    times = [10 * 1.03**i for i in range(11)]
    found = verdicts([figures(t) for t in times[::2]], [figures(t) for t in times[1::2]])
    assert found["step_ms"].verdict == "no difference"
    assert found["step_ms"].ratio == pytest.approx(1.0)


def test_forced_misses_are_a_ratio_of_zero() -> None:
    found = verdicts([figures(10, 0.8)] * 4, [figures(10, 0.0)] * 3)
    assert (found["hit_ratio"].ratio, found["hit_ratio"].verdict) == (0.0, "difference")


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(5, 8))
def test_noise_is_seldom_called_a_difference(seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(10):
        noisy = [figures(10 * math.exp(rng.normal(0, 0.05))) for _ in range(2 * rounds + 1)]
        wrong += verdicts(noisy[::2], noisy[1::2])["step_ms"].verdict == "difference"
    assert wrong <= 4


def test_the_table_and_json() -> None:
    a, b = [figures(6.0, 0.5)] * 4, [figures(40.0, 0.5)] * 3
    result = ab.Result("cuda-graph-decode", 3, 1.0, ab.compare(a, b), tuple(a), tuple(b))
    text = ab.table(result)
    assert "decode step, ms" in text
    assert "6.667" in text
    assert text.endswith("cuda-graph-decode: they differ (3 rounds of 1 s each)")
    data = json.loads(json.dumps(ab.as_json(result)))
    assert data["difference"]
    assert {m["measure"]: m["verdict"] for m in data["measures"]}["hit_ratio"] == "no difference"
    same = ab.Result("null", 3, 1.0, ab.compare(a, a[:3]), tuple(a), tuple(a[:3]))
    assert "null: no difference" in ab.table(same)
    none = ab.Result("null", 3, 1.0, ab.compare([NOTHING] * 4, [NOTHING] * 3), (), ())
    assert "nothing could be measured" in ab.table(none)


# --- flips in a snapshot ----------------------------------------------------------------------------------------------


def told(state: int, before: int, n: int, t: int, settled: bool = True, left: float | None = 50.0) -> Frame:
    off = bool(state & 1)
    switch = {
        "name": "cuda-graph-decode",
        "state": ("off" if off else "on") if settled else "pending",
        "wanted": "off" if off else "on",
        "available": True,
        "reason": "",
        "step": n + 1 if off else None,
        "owner": "pid 7" if off else "",
        "left_s": left if off else None,
        "asked": 1,
    }
    rest = [
        {**switch, "name": name, "state": "on", "wanted": "on", "step": None, "owner": "", "left_s": None}
        for name in ("cuda-graph-prefill", "radix-cache")
    ]
    return {
        "k": "switch",
        "t": t,
        "leader": True,
        "rank": 0,
        "size": 2,
        "armed": True,
        "word": [state, before, n],
        "settled": settled,
        "waits": "",
        "switches": [switch, *rest],
        "slots": [],
        "log": [],
        "ct": n,
    }


def model() -> Model:
    made = Model()
    for i in range(2):
        made.add(f"TP{i}", 10 + i)
        said: dict[str, Any] = hello(i, tp=2, dp=1, now=T0)
        made.hello(f"TP{i}", {**said, "modes": MODES}, T0)
    return made


def feed(made: Model, frame: Frame, now: int) -> None:
    made.frame("TP0", unpacked(frame) if frame["k"] == "ev" else frame, now)


def test_a_flip_shows_what_was_before_and_after() -> None:
    made = model()
    feed(made, steps(1, 200, 10), T0 + 2000 * MS)
    assert made.snapshot(0, T0, 1.0).switches == ()
    feed(made, told(1, 0, 200, T0, settled=False), T0 + 2001 * MS)
    (group,) = made.snapshot(0, T0 + 2001 * MS, 1.0).switches
    assert (group.name, group.ranks, group.flips) == ("TP0", ("TP0", "TP1"), ())
    assert group.switches[0].state == "pending"
    at = T0 + 2000 * MS
    feed(made, steps(201, 50, 40, t=at, graph=0), at + 2000 * MS)
    feed(made, told(1, 0, 200, at + 2000 * MS), at + 2000 * MS)
    feed(made, steps(251, 50, 40, t=at + 2000 * MS, graph=0), at + 4000 * MS)
    shot = made.snapshot(0, at + 4000 * MS, 1.0)
    (flip,) = shot.switches[0].flips
    assert (flip.switch, flip.to, flip.step, flip.mono_ns) == ("cuda-graph-decode", "off", 201, at)
    assert (flip.before.step_ms, flip.before.graph_share, flip.before.steps) == (10.0, 1.0, 200)
    assert (flip.after.step_ms, flip.after.graph_share) == (40.0, 0.0)
    assert shot.switches[0].switches[0].left_s == pytest.approx(48.0)
    jsonschema.Draft202012Validator(schema()).validate(json.loads(line(shot)))
    feed(made, told(0, 1, 300, at + 4000 * MS), at + 4100 * MS)
    feed(made, steps(301, 100, 10, t=at + 4000 * MS), at + 5000 * MS)
    off, on = made.snapshot(0, at + 5000 * MS, 1.0).switches[0].flips
    assert off == flip, "what comes later belongs to the next"
    assert (on.to, on.before.step_ms, on.after.step_ms) == ("on", 40.0, 10.0)


def test_frames_that_cannot_be_read_are_said_and_members_are_passed_over() -> None:
    made = model()
    bad = told(1, 0, 5, T0)
    del bad["switches"][0]["state"]
    with pytest.raises(WireError, match="switch frame"):
        feed(made, bad, T0)
    made.frame("TP1", {**told(1, 0, 5, T0), "leader": False, "rank": 1}, T0)
    assert made.snapshot(0, T0, 1.0).switches == ()
    assert "switch" in MODEL_KINDS, "a replay shows what the session showed"


def test_another_process_starts_without_flips() -> None:
    made = model()
    feed(made, told(1, 0, 5, T0), T0)
    assert made.snapshot(0, T0, 1.0).switches
    said: dict[str, Any] = hello(0, tp=2, dp=1, now=T0)
    made.hello("TP0", said, T0)
    assert made.snapshot(0, T0, 1.0).switches == ()
