"""Records of every CUPTI layout, one kind or mixed, sound or not, become the right columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_core.kernels.layout import STRIDES, LayoutError, dtypes
from sgtop_core.kernels.parse import Parser, Records

from .records import LAYOUTS, Rec, name_code, pack, strides

FIELDS = ("start", "end", "stream", "graph", "bytes")


def parse(data: bytes, layout: str) -> Records:
    return Parser(strides(layout)).parse(np.frombuffer(data, np.uint8))


def rows(r: Records) -> list[tuple[int, ...]]:
    return sorted(zip(*(getattr(r, f).tolist() for f in (*FIELDS, "name")), strict=True))


def expected(records: list[Rec]) -> list[tuple[int, ...]]:
    good = [r for r in records if r.start > 0 and r.end >= r.start]
    return sorted((r.start, r.end, r.stream, r.graph, r.bytes if r.kind != 10 else 0, name_code(r)) for r in good)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_only(layout: str) -> None:
    records = [Rec(10, 1000 + i, 2000 + i, stream=i % 5, name=0x7F00_0000_0000 + i, graph=i % 3) for i in range(500)]
    got = parse(pack(records, layout), layout)
    assert rows(got) == expected(records)
    assert got.untimed == 0
    assert not got.malformed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", ["kkkkkkkkkkcks", "kc", "kcs", "ccccccccccccccccccck", "s"])
def test_mixed_kinds(layout: str, pattern: str) -> None:
    kinds = {"k": 10, "c": 1, "s": 2}
    records = [
        Rec(
            kinds[c],
            10_000 + 10 * i,
            10_005 + 10 * i,
            stream=i % 3,
            name=0x5000 + i,
            bytes=1 << (i % 40),
            copy=1 + i % 8,
        )
        for i, c in enumerate(pattern * 211)
    ]
    assert rows(parse(pack(records, layout), layout)) == expected(records)


record = st.builds(
    Rec,
    kind=st.sampled_from([10, 10, 10, 10, 1, 2]),
    start=st.integers(0, 1 << 62),
    end=st.integers(0, 1 << 62),
    stream=st.integers(0, (1 << 32) - 1),
    name=st.integers(1, (1 << 47) - 1),
    graph=st.integers(0, (1 << 32) - 1),
    bytes=st.integers(0, 1 << 50),
    copy=st.integers(0, 10),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(record, st.integers(1, 40)), max_size=30), st.sampled_from(sorted(LAYOUTS)))
def test_any_buffer(runs: list[tuple[Rec, int]], layout: str) -> None:
    records = [r for r, n in runs for _ in range(n)]
    got = parse(pack(records, layout), layout)
    assert rows(got) == expected(records)
    assert got.untimed == len(records) - len(got)
    assert not got.malformed


def test_records_without_timestamps_are_dropped_and_counted() -> None:
    records = [Rec(10, 0, 0), Rec(10, 5, 9), Rec(10, 9, 5), Rec(1, 0, 4), Rec(2, 7, 7)]
    got = parse(pack(records), "13.0")
    assert got.untimed == 3
    assert sorted(got.start.tolist()) == [5, 7]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=4000), st.sampled_from(sorted(LAYOUTS)))
def test_garbage_is_said_to_be_garbage(data: bytes, layout: str) -> None:
    got = parse(data, layout)
    usable = len(data) // 4 * 4
    assert got.malformed or usable == 0 or data[0] in (1, 2, 10)


def test_what_came_before_garbage_is_kept() -> None:
    got = parse(pack([Rec(10, 5, 9), Rec(1, 6, 8)]) + b"\x33" * 400, "13.0")
    assert got.malformed
    assert sorted(got.start.tolist()) == [5, 6]


def test_cut_record_is_not_read() -> None:
    data = pack([Rec(10, 5, 9)] * 3)
    got = parse(data[:-8], "13.0")
    assert got.malformed
    assert len(got) == 2


def test_known_versions_agree_with_the_headers() -> None:
    known = {"12.4": "12.0", "12.8": "12.8", "13.0": "13.0", "13.2": "13.1", "13.4": "13.4"}
    for layout, since in known.items():
        assert strides(layout) == STRIDES[since]


@pytest.mark.parametrize(
    "bad", [{10: 200, 1: 96, 2: 88}, {10: 216, 1: 96}, {10: 220, 1: 96, 2: 88}, {10: 4096, 1: 96, 2: 88}]
)
def test_impossible_strides(bad: dict[int, int]) -> None:
    with pytest.raises(LayoutError):
        dtypes(bad)
