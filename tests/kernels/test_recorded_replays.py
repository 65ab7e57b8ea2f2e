"""The rule about replays that lack kernels, on the kernels and forwards of a real H200: it takes the edges, no more."""

from __future__ import annotations

import numpy as np
import pytest
from sgtop_core.kernels.tracker import COUNT_NS, KernelTracker
from sgtop_core.model.arrays import I64
from sgtop_core.model.events import batch
from sgtop_core.recording import embedded
from sgtop_core.recording.kernels import COLUMNS

Block = dict[str, I64]


def recorded(name: str) -> tuple[KernelTracker, list[tuple[int, Block]]]:
    """A tracker that knows the forwards and windows of a recording; (window, its kernels by start)."""
    forwards, kernels, windows = [], [], {}
    with embedded.open_demo(name) as recording:
        for entry in recording:
            frame = entry.frame
            if frame["k"] == "hello":
                tracker = KernelTracker({n: mode for mode, n in frame["modes"].items()})
            elif frame["k"] == "kernels":
                windows.update({row[0]: row for row in frame["windows"]})
            elif (frame["k"], frame.get("e")) == ("ev", "forward"):
                forwards.append(batch(frame).columns)
            elif frame["k"] == "raw":
                kernels.append({here: np.frombuffer(frame["c"][there], "<i8") for here, there in COLUMNS.items()})
    for rows in forwards:
        tracker.on_forwards(rows)
    tracker.on_state({"windows": list(windows.values())})
    everything = {name: np.concatenate([block[name] for block in kernels]) for name in COLUMNS}
    out = []
    for number, on, off, *_ in windows.values():
        mine = np.flatnonzero((everything["start"] >= on - 50_000_000) & (everything["start"] < off + 50_000_000))
        mine = mine[np.argsort(everything["start"][mine], kind="stable")]
        out.append((int(number), {name: column[mine] for name, column in everything.items()}))
    return tracker, [(number, rows) for number, rows in out if len(rows["start"])]


@pytest.mark.parametrize(("name", "bs"), [("contention", 1), ("decode-bound", 32)])
def test_every_replay_is_whole_but_those_at_the_windows_edges(name: str, bs: int) -> None:
    tracker, windows = recorded(name)
    for number, rows in windows:
        at = int(rows["start"].min())
        while len(rows["start"]):
            at += COUNT_NS
            ready = rows["end"] <= tracker.forwards.whole_until(at)  # as the tracker itself counts
            tracker._block(number, {name: column[ready] for name, column in rows.items()})
            rows = {name: column[~ready] for name, column in rows.items()}
    assert len(windows) >= 2
    assert set(tracker._replays._counts[1, bs]) == {508}, "kernels of the decode graph, each replay"
    lacking = [number for number, whole in tracker._replays._judged.items() if not whole]
    assert len(tracker._replays._judged) > 100 * len(windows)
    assert len(lacking) <= 2 * len(windows)
    assert tracker.cut <= 20 * len(windows), "copies and preparation at the edges"


@pytest.mark.parametrize("name", ["contention", "decode-bound", "eager-fallback", "prefill-bound"])
def test_what_is_not_busy_is_a_gap_and_every_forward_has_its_36_layers(name: str) -> None:
    tracker, windows = recorded(name)
    for number, rows in windows:
        at, end = int(rows["start"].min()), int(rows["end"].max())
        while at < end + 3 * COUNT_NS:
            at += COUNT_NS
            ready = rows["end"] <= tracker.forwards.whole_until(at)
            tracker._block(number, {column: values[ready] for column, values in rows.items()})
            rows = {column: values[~ready] for column, values in rows.items()}
    tracker._long.count(None, at)
    tracker._done_until = at
    view = tracker.view(at + 1_000_000_000, 600.0)
    assert view.busy_share is not None
    assert view.all_gaps is not None
    assert (1 - view.busy_share) * view.traced_s * 1e3 == pytest.approx(view.all_gaps.total_ms, rel=0.01, abs=0.3)
    (mode,) = (m for m in view.modes if m.mode in ("DECODE", "EXTEND"))
    assert {k.per_step for k in mode.rows[:3]} <= {36.0, 108.0}
