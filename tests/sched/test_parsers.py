"""Rings hold what the kernel wrote; a parser that meets anything else must pass it over, never raise or loop."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from sgtop_probes.sched import level_a, level_b, level_c, perf
from sgtop_probes.sched.tracefs import Event, Field, SwitchLayout

SWITCH = Event(
    372,
    {
        "common_type": Field(0, 2),
        "prev_comm": Field(8, 16),
        "prev_pid": Field(24, 4),
        "prev_prio": Field(28, 4),
        "prev_state": Field(32, 8),
        "next_comm": Field(40, 16),
        "next_pid": Field(56, 4),
        "next_prio": Field(60, 4),
    },
)
WAKEUP = Event(374, {"common_type": Field(0, 2), "comm": Field(8, 16), "pid": Field(24, 4), "target_cpu": Field(32, 4)})
LAYOUT = SwitchLayout(SWITCH, WAKEUP)


def record(type_: int, misc: int, body: bytes) -> bytes:
    body += b"\0" * (-len(body) % 8)
    return struct.pack("<IHH", type_, misc, 8 + len(body)) + body


def switch(t: int, cpu: int, prev: int, state: int, nxt: int) -> bytes:
    raw = struct.pack("<HBBi16siiq16sii", 372, 0, 0, prev, b"prev", prev, 120, state, b"next", nxt, 120)
    return record(perf.RECORD_SAMPLE, 1, struct.pack("<IIQIII", prev, prev, t, cpu, 0, len(raw)) + raw)


def wakeup(t: int, cpu: int, tid: int) -> bytes:
    raw = struct.pack("<HBBi16siii", 374, 0, 0, 1, b"woken", tid, 120, cpu)
    return record(perf.RECORD_SAMPLE, 1, struct.pack("<IIQIII", 1, 1, t, cpu, 0, len(raw)) + raw)


def lost(n: int) -> bytes:
    return record(perf.RECORD_LOST, 0, struct.pack("<QQ", 7, n))


def wide(t: int, cpu: int, tid: int, other: int, misc: int) -> bytes:
    return record(perf.RECORD_SWITCH_CPU_WIDE, misc, struct.pack("<IIIIQI", other, other, tid, tid, t, cpu))


def own(t: int, cpu: int, tid: int, misc: int) -> bytes:
    return record(perf.RECORD_SWITCH, misc, struct.pack("<IIQI", tid, tid, t, cpu))


ids = st.integers(0, 2**31 - 1)
times = st.integers(0, 2**63 - 1)
a_records = st.one_of(
    st.builds(switch, times, st.integers(0, 1023), ids, st.integers(0, 0x1FF), ids),
    st.builds(wakeup, times, st.integers(0, 1023), ids),
    st.builds(lost, st.integers(0, 2**40)),
)
b_records = st.one_of(
    st.builds(wide, times, st.integers(0, 1023), ids, ids, st.sampled_from([0, 1 << 13, 3 << 13])),
    st.builds(lost, st.integers(0, 2**40)),
)
c_records = st.one_of(
    st.builds(own, times, st.integers(0, 1023), ids, st.sampled_from([0, 1 << 13, 3 << 13])),
    st.builds(lost, st.integers(0, 2**40)),
)


def test_a_switch_is_read_as_it_was_written() -> None:
    out: list[level_a.Event] = []
    data = switch(5, 3, 10, 0x100, 20) + wakeup(4, 2, 10) + lost(9)
    assert level_a.parse(data, LAYOUT, out) == 9
    assert out[0][:6] == (5, 1, 3, 10, 10, 0x100)
    assert (out[0][6].rstrip(b"\0"), out[0][7], out[0][8].rstrip(b"\0")) == (b"prev", 20, b"next")
    assert out[1][:4] == (4, 0, 2, 10)


def test_wide_switches_are_read_with_and_without_other_records_between() -> None:
    out_record, in_record = wide(5, 1, 10, 20, 3 << 13), wide(6, 1, 20, 10, 0)
    for extra, n in ((b"", 0), (lost(3), 3)):
        out: list[level_b.Event] = []
        assert level_b.parse(out_record + extra + in_record, out) == n
        assert [(e[0], e[1], e[2], bool(e[4]), e[5]) for e in out] == [(5, 1, 10, True, 20)]


def test_own_switches() -> None:
    out: list[level_c.Event] = []
    assert level_c.parse(own(5, 1, 10, 3 << 13) + own(9, 2, 10, 0) + lost(2), out) == 2
    assert out == [(5, 0, 10, 1, 1), (9, 1, 10, 2, 0)]


@given(st.lists(a_records, max_size=20), st.integers(0, 4000))
def test_truncation_costs_the_last_record_only(parts: list[bytes], cut: int) -> None:
    data = b"".join(parts)
    whole: list[level_a.Event] = []
    level_a.parse(data, LAYOUT, whole)
    some: list[level_a.Event] = []
    level_a.parse(data[: min(cut, len(data))], LAYOUT, some)
    assert whole[: len(some)] == some
    fit, at = 0, 0
    for p in parts:
        at += len(p)
        fit += at <= cut and p[0] == perf.RECORD_SAMPLE
    assert len(some) == fit


@given(st.binary(max_size=600))
def test_garbage_is_passed_over(data: bytes) -> None:
    assert level_a.parse(data, LAYOUT, []) >= 0
    assert level_b.parse(data, []) >= 0
    assert level_c.parse(data, []) >= 0


@given(st.lists(a_records, max_size=8), st.binary(min_size=1, max_size=64), st.integers(0, 900))
def test_a_corrupt_stretch_never_raises(parts: list[bytes], junk: bytes, at: int) -> None:
    data = bytearray(b"".join(parts))
    data[at : at + len(junk)] = junk
    level_a.parse(bytes(data), LAYOUT, [])


@given(st.lists(b_records, max_size=30))
def test_level_b_counts_each_out_once(parts: list[bytes]) -> None:
    out: list[level_b.Event] = []
    n = level_b.parse(b"".join(parts), out)
    outs = sum(p[0] == perf.RECORD_SWITCH_CPU_WIDE and bool(p[5] & 0x20) for p in parts)
    assert len(out) == outs
    assert n == sum(struct.unpack_from("<Q", p, 16)[0] for p in parts if p[0] == perf.RECORD_LOST)


@given(st.lists(c_records, max_size=30))
def test_level_c_reads_each(parts: list[bytes]) -> None:
    out: list[level_c.Event] = []
    level_c.parse(b"".join(parts), out)
    assert len(out) == sum(p[0] == perf.RECORD_SWITCH for p in parts)


@given(st.binary(max_size=200))
def test_a_walk_always_moves_on(data: bytes) -> None:
    ends = [end for _t, _m, _b, end in perf.records(data)]
    assert ends == sorted(set(ends))
    assert all(e <= len(data) for e in ends)
