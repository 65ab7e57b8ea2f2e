"""Probe events survive the trip through a recording, whatever their dataclass holds."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from sgtop_agent.wire import WireError
from sgtop_core.recording import chunk
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.envelope import from_frame, to_frame
from sgtop_probes.sched.types import COLUMNS, Open, SchedBatch, Suspect, ThreadCounters, Throttle


@dataclass(frozen=True)
class Odd:
    pair: tuple[int, str]
    names: frozenset[str]
    inner: Mapping[str, Mapping[int, Suspect]]
    maybe: Suspect | None = None
    plain: list[float] = field(default_factory=list)


SUSPECT = Suspect(1, 2, "docker\udcffd", 3, 0.5)


def through(frame: dict) -> dict:  # type: ignore[type-arg]
    entries = chunk.decode(chunk.encode([Entry("sched", frame, 1)])).entries
    return entries[0].frame


def test_a_sched_batch() -> None:
    cols = {c: array("q", [i, i + 1, -1]) for i, c in enumerate(COLUMNS)}
    batch = SchedBatch(
        "A", 10, 5, **cols, comms=("x", "y"), open=(Open(1, 2, 0, 3, "z", 4),),
        threads=(ThreadCounters(1, 1, 5, None, 3, 4, 5, 6, None, 0, "R"),),
        throttle={7: Throttle("/a", 2, 1.5, 100000, 1, 2, 3)}, suspects=(SUSPECT,), migrations={3: 4},
        exact_cpus=(0, 1),
    )  # fmt: skip
    assert from_frame(through(to_frame(batch)), SchedBatch) == batch


def test_odd_fields() -> None:
    odd = Odd((1, "a"), frozenset({"b"}), {"x": {4: SUSPECT}}, SUSPECT, [1.5])
    assert from_frame(through(to_frame(odd)), Odd) == odd
    assert from_frame(through(to_frame(Odd((1, "a"), frozenset(), {}))), Odd) == Odd((1, "a"), frozenset(), {})


def test_an_older_or_newer_recording() -> None:
    frame = to_frame(Odd((1, "a"), frozenset(), {}))
    del frame["x"]["maybe"], frame["x"]["plain"]
    frame["x"]["of_the_future"] = 1
    assert from_frame(frame, Odd) == Odd((1, "a"), frozenset(), {})


@pytest.mark.parametrize("frame", [{}, {"k": "ev"}, {"k": "probe", "e": "Odd"}, {"k": "probe", "e": "Odd", "x": {}}])
def test_what_does_not_fit_is_an_error_in_words(frame: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(WireError):
        from_frame(frame, Odd)
