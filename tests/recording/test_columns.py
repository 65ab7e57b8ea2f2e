"""The column codec gives back what it was given, for frames of the wire and for anything else that fits int64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_agent import wire
from sgtop_core.recording import chunk, columns
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.errors import DamagedChunk
from sgtop_core.recording.quantise import quantise

from tests.recording import frames

INT64 = st.integers(-(2**63), 2**63 - 1)


def same(a: Entry, b: Entry) -> bool:
    """Equal, columns and their order included; a memoryview equals the bytes it shows."""
    if (a.source, a.mono_ns) != (b.source, b.mono_ns) or a.frame.get("k") != b.frame.get("k"):
        return False
    return a.frame == b.frame and list(a.frame.get("c", ())) == list(b.frame.get("c", ()))


def round_trip(entries: list[Entry]) -> None:
    out, sticky, told = chunk.decode(chunk.encode(entries))
    assert not sticky
    assert not told
    assert len(out) == len(entries)
    for a, b in zip(entries, out, strict=True):
        assert same(a, b), (a.source, a.frame.get("e"))


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("gpu", [True, False])
def test_agent_frames_come_back_exactly(gpu: bool, rounded: bool) -> None:
    round_trip([Entry(s, quantise(f) if rounded else f, t) for s, f, t in frames.stream(3, 1.0, gpu=gpu)])


def ev(table: str, rows: list[dict[str, int]]) -> wire.Frame:
    names = list(wire.TABLES[table])
    return wire.unpack(wire.pack(wire.events(table, {c: [r[c] for r in rows] for c in names}))[4:])


SAMPLES = [-3, -1, -1, 0, 1, 2, 1000, 1500, 2**63 - 1, -(2**63)]


def any_frame(r: random.Random) -> wire.Frame:
    """A frame of any table with any rows, or one without columns."""
    if r.random() < 0.3:
        return {"k": r.choice(["stat", "note", "x"]), "t": r.choice(SAMPLES), "f": r.random(), "m": {"a": [None, True]}}
    table = r.choice(sorted(wire.TABLES))
    wild = r.random() < 0.5

    def value() -> int:
        return r.choice(SAMPLES) if wild else r.randrange(-5, 10**6)

    return ev(table, [{c: value() for c in wire.TABLES[table]} for _ in range(r.randrange(6))])


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_any_frame_comes_back_exactly(seed: int, n: int) -> None:
    r = random.Random(seed)
    round_trip([Entry(r.choice(["TP0", "TP1", "sched"]), any_frame(r), r.choice(SAMPLES)) for _ in range(n)])


def test_columns_of_an_unknown_table_and_of_two_shapes() -> None:
    raw = memoryview(np.arange(6, dtype="<i8")).cast("B")
    half = {"k": "ev", "e": "step", "n": 6, "c": {"t0": raw, "new": raw}}
    full = next(f for _, f, _ in frames.stream(1, 0.05) if f.get("e") == "step")
    other = {"k": "ev", "e": "gizmo", "n": 6, "c": {"a": raw}, "extra": [1, {"x": "y"}]}
    round_trip([Entry("TP0", half, 1), Entry("TP0", full, 2), Entry("gpu", other, 3), Entry("TP1", half, 4)])


def test_memoryviews_inside_plain_frames_become_bytes() -> None:
    frame: dict[str, Any] = {"k": "reply", "result": memoryview(b"abc"), "list": (1, 2), "n": np.int64(3)}
    out, _, _ = chunk.decode(chunk.encode([Entry("TP0", frame, 1)]))
    assert out[0].frame == {"k": "reply", "result": b"abc", "list": [1, 2], "n": 3}


def test_sticky_entries_travel_with_the_chunk() -> None:
    hello = Entry("TP0", frames.hello(0), 5)
    entries, sticky, told = chunk.decode(chunk.encode([], [hello], [hello]))
    assert entries == []
    assert sticky == told == [hello]


@given(st.lists(INT64, max_size=50))
def test_planes(values: list[int]) -> None:
    v = np.array(values, dtype=np.int64)
    assert columns.from_planes(columns.to_planes(v), len(v)).tolist() == values


@given(st.binary(max_size=300))
def test_garbage_is_damage_in_words(data: bytes) -> None:
    with pytest.raises(DamagedChunk):
        chunk.decode(data)


def test_rounding_keeps_order_unknowns_and_what_it_does_not_know() -> None:
    rows = [
        {**dict.fromkeys(wire.TABLES["forward"], 7), "t0": t, "t1": t + 400, "gpu0": -1} for t in (1499, 1500, 2501)
    ]
    out = quantise(ev("forward", rows))
    cols = {k: np.frombuffer(v, "<i8").tolist() for k, v in out["c"].items()}
    assert cols["t0"] == [1000, 2000, 3000]
    assert cols["t1"] == [2000, 2000, 3000]
    assert cols["gpu0"] == [-1, -1, -1]
    assert cols["bs"] == [7, 7, 7]
    again = quantise(out)
    assert {k: bytes(v) for k, v in again["c"].items()} == {k: bytes(v) for k, v in out["c"].items()}
    odd = {"k": "ev", "e": "step", "n": 3, "c": {"t0": memoryview(b"12345678")}}
    assert quantise(odd) is odd
    assert quantise({"k": "stat", "t": 12345}) == {"k": "stat", "t": 12345}
