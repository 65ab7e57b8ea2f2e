"""A window ends in the middle of a graph replay: what an H200 says of that replay must not reach the tables.

The figures are of a recording (8B, 32 requests, CUPTI 13.0.85): 508 kernels of one replay ended 30 ms after tracing was
off, each in a step of 7 ms.
"""

from __future__ import annotations

import numpy as np
import pytest
from sgtop_core.kernels.tracker import KernelTracker

STEP = 7_000_000
KERNELS = 8
ON = 1_000_000_000
FIRST = ON + 200_000
"""The first replay begins."""
OFF = FIRST + 10 * STEP + 450_000
"""0.45 ms after the eleventh replay began."""


def forwards(n: int) -> dict[str, np.ndarray]:
    start = FIRST + np.arange(n) * STEP
    ones = np.ones(n, np.int64)
    columns = {
        "ct": np.arange(n), "runner": ones * 0, "mode": ones * 2, "t0": start - 100_000, "t1": start,
               "gpu0": start, "gpu1": start + STEP - 100_000, "gpu2": ones * -1, "bs": ones * 32, "graph": ones,
    }  # fmt: skip
    return {name: column.astype(np.int64) for name, column in columns.items()}


def kernels(late_ns: int) -> dict[str, np.ndarray]:
    """Eleven replays, one preparation launched by itself before each; the last replay ends ``late_ns`` too late."""
    rows = []
    for step in range(11):
        at = FIRST + step * STEP
        rows.append((at + 10_000, at + 12_000, 77, 0))
        for k in range(KERNELS):
            start = at + 50_000 + k * 800_000
            rows.append((start, start + 500_000 + (late_ns if step == 10 else 0), 100 + k, 14))
    start, end, name, graph = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    zero = np.zeros(len(rows), np.int64)
    return {"start": start, "end": end, "name": name, "stream": zero + 13, "graph": graph, "bytes": zero,
            "epoch": zero + 1}  # fmt: skip


def counted(late_ns: int, off: int) -> KernelTracker:
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(forwards(20))
    tracker.on_state({"k": "kernels", "windows": [[1, ON, off, 0, 0]], "on": None})
    tracker._block(1, kernels(late_ns))
    return tracker


def test_a_replay_that_was_cut_is_in_no_table() -> None:
    tracker = counted(30_000_000, OFF)
    stats = tracker._stats.since(0)
    assert tracker.cut == KERNELS + 1  # what the same forward launched by itself goes with it
    assert set(stats.count.tolist()) == {10}
    assert int(stats.high.max()) == 500_000


def per_step(tracker: KernelTracker) -> set[float | None]:
    tracker._done_until = OFF + STEP
    (decode,) = (m for m in tracker.view(OFF + STEP, 60.0).modes if m.mode == "DECODE")
    assert decode.forwards == 10
    return {k.per_step for k in decode.rows}


@pytest.mark.parametrize("come", ["late", "never", "in a block of their own"])
def test_a_forward_is_counted_whole_or_not_at_all(come: str) -> None:
    """Whatever becomes of the cut replay's kernels, the preparation of its forward makes no forward of it.

    Seen on an H200: of 63 forwards one had its preparation and sampling and no other kernel, so that every kernel of
    the graph showed 35.4 launches a step instead of 36.
    """
    tracker = counted(30_000_000, OFF) if come == "late" else KernelTracker({2: "DECODE"})
    if come != "late":
        rows = kernels(30_000_000)
        whole = rows["end"] <= OFF
        tracker.on_forwards(forwards(20))
        tracker.on_state({"k": "kernels", "windows": [[1, ON, OFF, 0, 0]], "on": None})
        tracker._block(1, {name: column[whole] for name, column in rows.items()})
        if come != "never":
            tracker._block(1, {name: column[~whole] for name, column in rows.items()})
    assert per_step(tracker) == {1.0}


def test_what_ran_while_the_kinds_were_being_disabled_was_cut_too() -> None:
    """The switch takes 20 ms: the replay ends before it is over, and yet its kernels may be missing."""
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(forwards(20))
    tracker.on_state({"k": "kernels", "windows": [[1, ON, OFF + 20_000_000, 0, 20_000_000]], "on": None})
    tracker._block(1, {name: column[:-4] for name, column in kernels(0).items()})
    assert per_step(tracker) == {1.0}


def test_a_stray_kernel_makes_no_forward_of_one_that_was_launched_after_the_window() -> None:
    tracker = counted(30_000_000, OFF)
    after = {name: column[:1].copy() for name, column in kernels(0).items()}
    after["start"] += 11 * STEP
    after["end"] += 11 * STEP
    tracker._block(1, after)
    assert per_step(tracker) == {1.0}


def test_kernels_launched_by_themselves_stay_when_they_end_after_the_switch() -> None:
    rows = kernels(30_000_000)
    rows["graph"][:] = 0
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_state({"k": "kernels", "windows": [[1, ON, OFF, 0, 0]], "on": None})
    tracker._block(1, rows)
    assert tracker.cut == 0
    assert int(tracker._stats.since(0).count.sum()) == 11 * (KERNELS + 1)


def test_nothing_is_cut_while_tracing_goes_on() -> None:
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(forwards(20))
    tracker.on_state({"k": "kernels", "windows": [], "on": [1, ON]})
    tracker._block(1, kernels(0))
    assert tracker.cut == 0
    assert set(tracker._stats.since(0).count.tolist()) == {11}


def traced(rows: dict[str, np.ndarray], *blocks: np.ndarray) -> KernelTracker:
    """A window of eleven steps that ends in the twelfth; its records come as ``blocks`` of indices."""
    tracker = KernelTracker({2: "DECODE"})
    before = forwards(110)
    for name in ("t0", "t1", "gpu0", "gpu1"):
        before[name] = before[name] - 90 * STEP
    tracker.on_forwards(before)
    tracker.on_state({"k": "kernels", "windows": [[1, ON, FIRST + 11 * STEP + 450_000, 0, 0]]})
    for block in blocks:
        tracker._block(1, {name: column[block] for name, column in rows.items()})
    tracker._long.count(None, FIRST + 12 * STEP)
    tracker._done_until = FIRST + 12 * STEP
    return tracker


FIFTH = slice(4 * (KERNELS + 1), 5 * (KERNELS + 1))


@pytest.mark.parametrize("left", [0, 3, 6])
@pytest.mark.parametrize("others", ["never come", "come later", "begin before the window", "end after it"])
def test_a_replay_with_a_hole_is_in_no_table_and_no_idle_time(left: int, others: str) -> None:
    """Seen on an H200 with a MoE model: 234 of the 834 kernels of one replay came, 0.15 s after tracing was on."""
    rows = kernels(0)
    everything = np.arange(len(rows["start"]))
    missing = everything[FIFTH][1 + left :]
    if others == "begin before the window":
        rows["start"][missing] -= 600_000_000
    elif others == "end after it":
        rows["end"][missing] += 600_000_000
    blocks = [np.setdiff1d(everything, missing)]
    if others != "never come":
        blocks.append(missing)
    tracker = traced(rows, *blocks)
    view = tracker.view(FIRST + 12 * STEP, 60.0)
    (decode,) = (m for m in view.modes if m.mode == "DECODE")
    assert (decode.forwards, {k.per_step for k in decode.rows}) == (10, {1.0})
    assert max(k.max_us for k in decode.rows) == 500
    assert view.cut == (1 + left if others == "never come" else 1 + KERNELS)
    assert view.traced_s == pytest.approx(10 * STEP / 1e9, rel=0.02), "what is not known is not traced"
    assert view.all_gaps is not None
    assert view.all_gaps.max_us is not None
    assert view.all_gaps.max_us < 1_500, "the hole is no gap"
    assert view.busy_share == pytest.approx(KERNELS * 500_000 / STEP, abs=0.02)
    assert view.event_busy_share == pytest.approx(1 - 100_000 / STEP, abs=0.01)


def test_graphs_of_other_batch_sizes_may_have_fewer_kernels() -> None:
    rows = kernels(0)
    short = np.flatnonzero((rows["name"] == 107) | (rows["name"] == 106))[12:]  # of the last five replays, two each
    before = forwards(20)
    before["bs"][6:] = 1
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(before)
    tracker.on_state({"k": "kernels", "windows": [], "on": [1, ON]})
    tracker._block(1, {name: np.delete(column, short) for name, column in rows.items()})
    assert tracker.cut == 0


def test_forwards_that_replay_now_more_now_less_are_counted() -> None:
    """Draft steps of several lengths under one mode and batch size: three of them have half of the kernels."""
    rows = kernels(0)
    at = (rows["start"] - FIRST) // STEP
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(forwards(20))
    tracker.on_state({"k": "kernels", "windows": [], "on": [1, ON]})
    gone = np.flatnonzero((rows["name"] >= 104) & np.isin(at, (2, 5, 8)))
    tracker._block(1, {name: np.delete(column, gone) for name, column in rows.items()})
    assert tracker.cut == 0


def test_graphs_that_were_captured_anew_with_fewer_kernels_come_back_into_the_tables() -> None:
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_state({"k": "kernels", "windows": [], "on": [1, ON]})
    for n in range(12):
        rows, ran = kernels(0), forwards(11)
        for name in ("t0", "t1", "gpu0", "gpu1"):
            ran[name] += n * 11 * STEP
        rows["start"] += n * 11 * STEP
        rows["end"] += n * 11 * STEP
        tracker.on_forwards(ran)
        few = rows["name"] >= 104 if n else np.zeros(len(rows["name"]), bool)
        before = tracker.cut
        tracker._block(1, {name: column[~few] for name, column in rows.items()})
    assert before == tracker.cut, "the last are counted"


def test_forwards_without_graphs_may_have_any_number_of_kernels() -> None:
    rows = kernels(0)
    rows["graph"][:] = 0
    ran = forwards(20)
    ran["graph"][:] = 0
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(ran)
    tracker.on_state({"k": "kernels", "windows": [], "on": [1, ON]})
    tracker._block(1, {name: np.delete(column, FIFTH) for name, column in rows.items()})
    tracker._block(1, {name: np.delete(column, slice(40, None)) for name, column in rows.items()})
    assert tracker.cut == 0


def test_what_another_client_traced_before_is_no_idle_time() -> None:
    """A window that ended before this client came: it knows no kernel of it."""
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(forwards(20))
    tracker.on_state({"k": "kernels", "windows": [[1, ON - 40 * STEP, ON - 20 * STEP, 0, 0], [2, ON, OFF, 0, 0]]})
    tracker._since = ON - 5 * STEP
    tracker._block(2, kernels(0))
    tracker._done_until = OFF + STEP
    view = tracker.view(OFF + STEP, 60.0)
    assert view.traced_s == pytest.approx(10 * STEP / 1e9, rel=0.1), "the eleventh was cut"
    assert view.busy_share is not None
    assert view.busy_share > 0.5


def test_what_was_launched_before_tracing_is_no_idle_time() -> None:
    """Prefills: tracing is on, and the GPU works off for 40 steps' time what was launched before; nothing shows it."""
    tracker = KernelTracker({2: "DECODE"})
    rows = forwards(40)
    rows["t0"] = rows["t1"] = ON - 50 * STEP + np.arange(40, dtype=np.int64) * 1_000
    traced = {name: column + 40 * STEP if name in ("t0", "t1", "gpu0", "gpu1") else column
              for name, column in forwards(20).items()}  # fmt: skip
    traced["ct"] = traced["ct"] + 40
    tracker.on_forwards({name: np.concatenate((rows[name], traced[name])) for name in rows})
    off = FIRST + 51 * STEP + 450_000
    tracker.on_state({"k": "kernels", "windows": [[1, ON, off, 0, 0]], "on": None})
    late = kernels(0)
    late["start"], late["end"] = late["start"] + 40 * STEP, late["end"] + 40 * STEP
    tracker._block(1, late)
    tracker._done_until = off + STEP
    view = tracker.view(off + STEP, 60.0)
    assert view.traced_s == pytest.approx(11 * STEP / 1e9, rel=0.05)
    assert view.event_busy_share is not None
    assert view.event_busy_share > 0.9


def test_the_tables_have_all_of_a_window_as_soon_as_it_is_counted() -> None:
    """Not at the next second: a recording that ends before has it all, and nobody reads half a window for long."""
    tracker = KernelTracker({2: "DECODE"})
    tracker.on_forwards(forwards(20))
    tracker.on_state({"k": "kernels", "windows": [], "on": [1, ON]})
    rows = kernels(0)
    first = rows["start"] < FIRST + 5 * STEP
    later = {c: v[~first] for c, v in rows.items()}
    second = 1_000_000_000
    now = FIRST + 30 * STEP
    tracker._pending = [{c: v[first] for c, v in rows.items()}]
    tracker._count(now)
    (decode,) = tracker.view(now, 60.0).modes
    assert decode.forwards == 5
    tracker._pending = [later]
    tracker.on_state({"k": "kernels", "windows": [[1, ON, OFF, 0, 0]], "on": None})
    assert tracker.view(now + 1, 60.0).modes[0].forwards == 5, "some are still to be counted"
    now += 2 * STEP + 200_000_000
    tracker._count(now)
    tracker._long.count(None, now)
    assert now // second == (FIRST + 30 * STEP) // second, "else this test shows nothing"
    (decode,) = tracker.view(now, 60.0).modes
    assert decode.forwards == 10
