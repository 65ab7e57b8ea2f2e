"""Readings of GPUs in a recording are curves in both exports: their times, units and gaps."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from sgtop_core.contention import gpus as view
from sgtop_core.export import html, perfetto
from sgtop_core.export.build import build, gather
from sgtop_core.export.run import export
from sgtop_core.export.timeline import Timeline
from sgtop_core.model.model import Model
from sgtop_core.model.snapshot import Gpu
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.recorder import Recorder
from sgtop_core.recording.state import SOURCE, StateFrames
from sgtop_probes.gpu.nvml import GpuSource

from tests.gpu.fake_nvml import FakeNvml
from tests.recording import frames
from tests.recording.test_perfetto import decode

S = 1_000_000_000


def entries(seconds: int = 4, **driver: object) -> list[Entry]:
    """A session beside a (fake) driver with two GPUs, as its recorder gets it; a reading a second."""
    out = [Entry("TP0", frames.hello(0), frames.START)]
    model, state, now = Model(), StateFrames(), frames.START
    source = GpuSource(FakeNvml(2, **driver), clock=lambda: now)  # type: ignore[arg-type]
    for k in range(1, seconds + 1):
        now = frames.START + k * S
        model.gpus = view.view(source.poll(), {"GPU-0": ("TP0",), "GPU-1": ("TP1",)})
        out += [Entry(SOURCE, f, now + 200_000_000) for f in state.frames(model, 0.0)]
    return out


def timeline(all_entries: list[Entry], lo: int = frames.START, hi: int = frames.START + 10 * S) -> Timeline:
    return build(gather(all_entries), lo=lo, hi=hi)


def curves(raw: bytes) -> dict[tuple[str, str], list[tuple[int, float]]]:
    out: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for process, name, t, v in decode(raw)[1]:
        out.setdefault((process, name), []).append((t, v))
    return out


def test_every_reading_is_a_value_at_the_time_it_was_read() -> None:
    out = io.BytesIO()
    perfetto.write(timeline(entries()), out)
    got = curves(out.getvalue())
    times = [frames.START + k * S for k in (1, 2, 3, 4)]
    assert got["GPU 0", "power"] == [(t, 345.6) for t in times]
    assert got["GPU 1", "sm_clock"] == [(t, 1755.0) for t in times]
    assert got["GPU 0", "memory_used"] == [(t, 100.0) for t in times]
    # GPM is the difference of two samples: the first second has none, and that is no 0
    assert got["GPU 0", "sm_busy"] == [(t, pytest.approx(80.0)) for t in times[1:]]
    assert got["GPU 0", "dram_busy"] == [(t, pytest.approx(60.0)) for t in times[1:]]
    assert {p for p, _ in got} == {"GPU 0", "GPU 1"}


def test_what_the_driver_never_says_is_no_curve() -> None:
    out = io.BytesIO()
    perfetto.write(timeline(entries(gpm=False)), out)
    names = {name for _, name in curves(out.getvalue())}
    assert "kernel_running" in names
    assert not {"sm_busy", "dram_busy", "tensor_busy"} & names


def test_only_the_range_that_was_asked_for() -> None:
    t = timeline(entries(), lo=frames.START + 2 * S, hi=frames.START + 3 * S)
    assert {len(c.t) for c in t.counters} == {2}


def test_a_mig_slice_has_a_group_of_its_own() -> None:
    groups = {c.group for c in timeline(entries(mig=(0, 3))).counters}
    assert groups == {f"GPU {g} MIG {m}" for g in (0, 1) for m in (0, 3)}


def test_a_recording_of_before_readings_had_a_time() -> None:
    model, state = Model(), StateFrames()
    model.gpus = (Gpu(0, "GPU-0", "NVIDIA H200", power_w=300.0),)
    recorded = [Entry(SOURCE, f, frames.START + 7) for f in state.frames(model, 0.0)]
    (power,) = timeline(recorded).counters
    assert (power.t.tolist(), power.v.tolist(), power.unit) == ([frames.START + 7], [300.0], "W")


def test_the_page_has_a_curve_a_counter() -> None:
    page = html.page(timeline(entries()))
    model = json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    curves = {(c["group"], c["name"]): c for c in model["counters"]}
    assert curves["GPU 0", "sm_busy"]["unit"] == "%"
    assert curves["GPU 1", "power"]["unit"] == "W"
    assert curves["GPU 1", "power"]["t"][2] == 4


def test_from_a_file_to_both_exports(tmp_path: Path) -> None:
    path = tmp_path / "x.sgtop"
    r = Recorder()
    r.start(path)
    for source, frame, t in entries():
        r.tap(source, frame, t)
    r.stop()
    r.close()
    done = export(path, "perfetto", tmp_path / "x.pftrace")
    assert done.events > 0
    got = curves((tmp_path / "x.pftrace").read_bytes())
    assert [v for _, v in got["GPU 0", "power"]] == [345.6] * len(got["GPU 0", "power"])
    assert len(got["GPU 0", "power"]) >= 3
    export(path, "html", tmp_path / "x.html")
    assert "sm_busy" in (tmp_path / "x.html").read_text(encoding="utf-8")
