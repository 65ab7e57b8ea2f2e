"""Kernel tables of a recording: all that was traced, nothing twice, and the time that they cover."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import sgtop_core.recording
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_core.model.arrays import F64
from sgtop_core.model.kernel_view import Kernel, KernelMode, KernelView
from sgtop_core.recording.kernels import KIND, kernels_frame
from sgtop_core.recording.reader import Recording
from sgtop_core.report import tables, text
from sgtop_core.report.figures import KernelCover, KernelFigures
from sgtop_core.report.kernels import KernelViews
from sgtop_core.report.measure import measure

S = 1_000_000_000
LAG_NS = 410_000_000
"""Kernels are counted when their forward is known, in blocks: so long after they ended."""
EMBEDDED = Path(sgtop_core.recording.__file__).parent / "embedded"


def kernel(name: str, us: F64, whole_ms: float, forwards: int) -> Kernel:
    """A row as the tracker makes it."""
    total = float(us.sum()) / 1e3
    return Kernel(
        name=name, category="gemm", count=len(us), total_ms=total, share=total / whole_ms, avg_us=float(us.mean()),
        med_us=float(np.median(us)), min_us=float(us.min()), max_us=float(us.max()),
        stddev_us=float(us.std(ddof=1)) if len(us) > 1 else 0.0, per_step=len(us) / forwards, full_name=f"{name}()",
    )  # fmt: skip


@dataclass
class Tracker:
    """Counts blocks of kernels as the real one does: a kernel ``common``, and one that only this block has."""

    mode: str
    tracing_s: float
    seed: int = 0
    blocks: list[tuple[int, str, F64, F64]] = field(default_factory=list)
    """(second, name of its own kernel, durations of that, of the common one), us."""

    def count(self, now: int) -> int:
        """A block that ends at ``now``; its launches."""
        rng = np.random.default_rng((self.seed, len(self.blocks)))
        own, common = (rng.lognormal(1, 1, rng.integers(1, 30)) for _ in range(2))
        self.blocks.append((now // S, f"own{len(self.blocks)}", own, common))
        return len(own) + len(common)

    def view(self, now: int, window_s: float) -> KernelView:
        """The rule of ``KernelTracker.view``."""
        newest = self.blocks[-1][0] if self.blocks else None
        since = now // S - int(window_s)
        if newest is not None and newest < since + 1:
            since = newest - max(int(self.tracing_s), 1)
        held = [b for b in self.blocks if b[0] >= since]
        kernels = {name: own for _, name, own, _ in held}
        if held:
            kernels["common"] = np.concatenate([b[3] for b in held])
        ms = sum(float(v.sum()) for v in kernels.values()) / 1e3
        rows = tuple(kernel(name, us, ms, len(held)) for name, us in kernels.items())
        mode = KernelMode("DECODE", len(held), sum(k.count for k in rows), None, ms, 1.0, rows)
        return KernelView(
            self.mode, "tracing", "", window_s=self.tracing_s, traced_s=0.2 * len(held),
            newest_s=None if newest is None else newest + 1.0, modes=(mode,) if held else (),
        )  # fmt: skip


def frame(launches: int, end: int) -> dict[str, object]:
    """Single kernels that ended up to ``end``."""
    columns = dict.fromkeys(("start", "name", "stream", "graph", "bytes"), np.zeros(launches, np.int64))
    return kernels_frame({**columns, "end": np.full(launches, end)})


def watch(
    tracker: Tracker, seconds: int, window_s: float, on: int, period: int, recorded_from: int = 0
) -> tuple[KernelCover, dict[str, KernelFigures], list[tuple[int, str, F64, F64]]]:
    """(what is covered, rows by name, blocks of the recorded time), tracing ``on`` of ``period`` ticks of 0.2 s."""
    views = KernelViews()
    begin = 1_000 * S + tracker.seed % 5 * 200_000_000
    recorded = 0
    view, at = None, (-1, 0.0)
    for tick in range(seconds * 5):
        now = begin + tick * 200_000_000
        recording = tick >= recorded_from * 5
        if tick % period < on:
            n = tracker.count(now - LAG_NS)
            if recording:
                views.block(frame(n, now - LAG_NS))
            else:
                recorded = len(tracker.blocks)
        if at != (now // S, window_s):  # tables are made anew once a second
            view, at = tracker.view(now, window_s), (now // S, window_s)
        if recording and view is not None:
            views.see(view, now)
    cover, rows = views.sums()
    return cover, {k.name: k for k in rows}, tracker.blocks[recorded:]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.sampled_from([5.0, 60.0, 600.0]), st.integers(1, 9), st.integers(10, 60))
def test_no_block_is_counted_twice(seed: int, window_s: float, on: int, period: int) -> None:
    """Whatever the display's window and however tracing is switched: a block is in the sums once or not at all."""
    cover, rows, blocks = watch(Tracker("windows", max(on / 5, 1.0), seed), 90, window_s, on, period)
    own = {name: len(us) for _, name, us, _ in blocks}
    taken = {name: k.count for name, k in rows.items() if name != "common"}
    assert taken.items() <= own.items()
    assert rows["common"].count == sum(len(c) for _, name, _, c in blocks if name in taken)
    assert cover.modes[0].forwards == len(taken)
    assert cover.modes[0].launches == sum(k.count for k in rows.values())
    assert cover.traced_s == pytest.approx(0.2 * len(taken))
    assert cover.whole


def test_every_tracing_window_is_in() -> None:
    cover, rows, blocks = watch(Tracker("windows", 1.0), 45, 5.0, 5, 50)
    assert cover.stretches == 5
    assert len(rows) == len(blocks) + 1
    # The same on a screen that shows a minute: one view holds them all.
    cover, rows, blocks = watch(Tracker("windows", 1.0), 45, 60.0, 5, 50)
    assert cover.stretches == 1
    assert len(rows) == len(blocks) + 1


def test_continuous_tracing_loses_only_what_is_at_the_borders() -> None:
    cover, rows, blocks = watch(Tracker("on", 1.0, 3), 60, 5.0, 1, 1)
    assert cover.stretches > 8
    assert 0.88 * len(blocks) <= len(rows) - 1 < len(blocks)
    assert cover.modes[0].forwards == len(rows) - 1


def test_sums_are_exact() -> None:
    _, rows, blocks = watch(Tracker("windows", 1.0), 45, 5.0, 5, 50)
    us = np.concatenate([b[3] for b in blocks])
    k = rows["common"]
    assert k.count == len(us)
    assert k.total_ms == pytest.approx(us.sum() / 1e3)
    assert (k.avg_us, k.min_us, k.max_us) == pytest.approx((us.mean(), us.min(), us.max()))
    assert k.stddev_us == pytest.approx(us.std(ddof=1))
    assert k.med_us == pytest.approx(np.median(us), rel=0.2)
    assert k.per_step == pytest.approx(len(us) / len(blocks))
    assert sum(x.share for x in rows.values()) == pytest.approx(1.0)


def test_what_was_traced_before_the_recording_is_not_in() -> None:
    """``R`` and ``S`` record in the middle: the first views hold kernels from before."""
    cover, rows, blocks = watch(Tracker("windows", 1.0), 45, 5.0, 5, 50, recorded_from=15)
    assert cover.whole
    assert set(rows) - {"common"} == {name for _, name, _, _ in blocks}


def test_only_a_view_from_before_the_recording_is_called_that() -> None:
    cover, rows, _ = watch(Tracker("windows", 1.0), 8, 5.0, 5, 50, recorded_from=2)
    assert not cover.whole
    assert len(rows) == 6


def test_rows_that_the_tables_left_out_are_the_rest() -> None:
    us = np.array([1.0, 3.0])
    row = kernel("a", us, 0.010, 2)
    view = KernelView(
        "windows", "waiting", "", traced_s=1.0, newest_s=1001.0,
        modes=(KernelMode("DECODE", 2, 6, 3.0, 0.010, 1.0, (row,), hidden=7),),
    )  # fmt: skip
    views = KernelViews()
    views.block(frame(6, 1000 * S))
    views.see(view, 1001 * S)
    _, rows = views.sums()
    assert [(k.name, k.count) for k in rows] == [("a", 2), ("rest", 4)]
    assert sum(k.share for k in rows) == pytest.approx(1.0)
    assert sum(k.total_ms for k in rows) == pytest.approx(0.010)


@pytest.mark.parametrize("name", ["contention", "eager-fallback", "prefill-bound"])
def test_real_recordings_are_counted_to_the_last_kernel(name: str) -> None:
    counted: Counter[str] = Counter()
    with Recording(EMBEDDED / f"{name}.sgtop") as r:
        for e in r:
            if e.frame.get("k") == KIND:
                counted[e.source] += e.frame["n"]
        f = measure(r)
    for rank in f.ranks:
        assert rank.traced.whole
        assert rank.traced.stretches == (3 if name == "contention" else 2)
        assert sum(k.count for k in rank.kernels) == counted[rank.rank]
    assert f"{f.ranks[0].traced.traced_s:.2f} s traced in " in text.text(f)
    t = next(t for t in tables.tables(f) if t.key == "kernels")
    for row in csv.DictReader(io.StringIO(tables.as_csv(t))):
        assert float(row[tables.TRACED]) == f.ranks[0].traced.traced_s
