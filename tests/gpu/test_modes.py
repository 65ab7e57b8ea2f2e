"""Counters by forward mode: estimates from readings of a (fake) driver and the modes' GPU time in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sgtop_core.contention import gpus
from sgtop_core.jsonout import as_json
from sgtop_core.model.gpu_modes import GpuModes, share_of
from sgtop_core.model.snapshot import Gpu, GpuMode
from sgtop_core.model.windows import TICK_NS
from sgtop_core.simulate.loop import Load, Step
from sgtop_probes.gpu.nvml import GpuSource

from tests.core.feed import Feed

from .fake_nvml import FakeNvml

S = 1_000_000_000


class Times:
    """GPU time by rank and second."""

    def __init__(self, *seconds: Mapping[str, float], rank: str = "TP0") -> None:
        self.seconds, self.rank = seconds, rank

    def gpu_ns(self, rank: str, a: int, b: int) -> Mapping[str, float] | None:
        assert b - a == S
        return {m: s * 1e9 for m, s in self.seconds[a // S].items()} if rank == self.rank else None


def reading(second: int, **values: float) -> tuple[Gpu, ...]:
    return (Gpu(0, "GPU-0", "H200", ("TP0",), mono_ns=second * S, **values),)  # type: ignore[arg-type]


def estimates(times: Times, readings: list[dict[str, float]], level: int = 1) -> Mapping[str, GpuMode]:
    modes = GpuModes()
    last: tuple[Gpu, ...] = ()
    for k, values in enumerate(readings):
        last = reading(k + 1, **values)
        modes.look(last, (k + 1) * S, times)
    (g,) = modes.view(last, level, len(readings) * S)
    return g.by_mode


def test_modes_that_have_seconds_of_their_own_get_their_own_figures() -> None:
    got = estimates(
        Times({"EXTEND": 0.9}, {"DECODE": 0.5}, {"EXTEND": 0.9}, {"DECODE": 0.5}),
        [{"sm_busy": 0.81, "dram_busy": 0.27, "power_w": 600.0}, {"sm_busy": 0.2, "dram_busy": 0.4, "power_w": 300.0}]
        * 2,
    )
    assert got["EXTEND"].sm_busy == pytest.approx(0.9)
    assert got["EXTEND"].dram_busy == pytest.approx(0.3)
    assert got["DECODE"].sm_busy == pytest.approx(0.4), "it was 0 for the half second in which nothing ran"
    assert got["DECODE"].dram_busy == pytest.approx(0.8)
    assert (got["EXTEND"].power_w, got["DECODE"].power_w) == (600.0, 300.0)
    assert (got["EXTEND"].alone, got["DECODE"].alone) == (1.0, 1.0)
    assert got["EXTEND"].gpu_s == pytest.approx(1.8)
    assert got["DECODE"].tensor_busy is None


def test_modes_that_share_every_second_say_so() -> None:
    got = estimates(Times({"EXTEND": 0.2, "DECODE": 0.8}), [{"sm_busy": 0.5}])
    assert got["EXTEND"].sm_busy == got["DECODE"].sm_busy == 0.5
    assert got["EXTEND"].alone == pytest.approx(0.2)
    assert got["DECODE"].alone == pytest.approx(0.8)


def test_an_idle_second_says_nothing_about_a_mode() -> None:
    got = estimates(Times({"DECODE": 0.9}, {"DECODE": 0.01}), [{"sm_busy": 0.45}, {"sm_busy": 0.3}])
    assert got["DECODE"].sm_busy == pytest.approx(0.5)


def test_readings_older_than_the_window_are_left_out() -> None:
    times = Times({"EXTEND": 1.0}, *({"DECODE": 1.0} for _ in range(8)))
    assert set(estimates(times, [{"sm_busy": 0.5}] * 9, level=0)) == {"DECODE"}
    assert set(estimates(times, [{"sm_busy": 0.5}] * 9, level=1)) == {"DECODE", "EXTEND"}


def test_a_rank_without_gpu_times_gives_no_estimate() -> None:
    assert estimates(Times({"DECODE": 0.9}, rank="TP7"), [{"sm_busy": 0.45}]) == {}


SECOND = st.tuples(st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 1))


@given(st.lists(SECOND, min_size=1, max_size=8))
def test_an_estimate_lies_between_the_readings(seconds: list[tuple[float, float, float]]) -> None:
    times = Times(*({"EXTEND": a, "DECODE": b} for a, b, _ in seconds))
    got = estimates(times, [{"power_w": p} for _, _, p in seconds])
    used = [p for a, b, p in seconds if a + b >= 0.05]
    for m in got.values():
        assert 0 <= m.alone <= 1 + 1e-9
        if m.power_w is not None:
            assert min(used) - 1e-9 <= m.power_w <= max(used) + 1e-9


def test_part_of_a_tick_counts_by_its_part() -> None:
    assert share_of([100, 200, 300], 12, 10 * TICK_NS, 13 * TICK_NS) == 600
    assert share_of([100, 200, 300], 12, 10 * TICK_NS + TICK_NS // 2, 12 * TICK_NS) == 250
    assert share_of([100], 12, 0, TICK_NS) == 0


def test_readings_of_a_driver_beside_a_server_that_decodes() -> None:
    """From the fake driver through the model to JSON: 80 % of the SM time over a GPU that is busy all the time."""
    f = Feed(lambda r, n, t, g: Step("DECODE", 32, 32, 9_000, load=Load(32)))
    driver = GpuSource(FakeNvml(1), clock=lambda: f.now)
    next_at = f.now

    def poll(feed: Feed) -> None:
        nonlocal next_at
        if feed.now >= next_at:
            next_at = feed.now + S
            feed.model.gpus = gpus.view(driver.poll(), {"GPU-0": ("TP0",)})

    f.run(8, poll)
    shot = f.snapshot()
    assert shot.gpus[0].sm_busy == 0.8
    m = as_json(shot)["gpus"][0]["by_mode"]["DECODE"]
    assert m["sm_busy"] == pytest.approx(0.8 / 0.985, rel=0.03)
    assert m["dram_busy"] == pytest.approx(0.6 / 0.985, rel=0.03)
    assert m["power_w"] == 345.6
    assert m["sm_clock_mhz"] == 1755
    assert m["alone"] == 1
    assert m["gpu_s"] == pytest.approx(4.0, abs=1.2)


def test_without_gpm_only_what_the_driver_says() -> None:
    f = Feed(lambda r, n, t, g: Step("DECODE", 32, 32, 9_000, load=Load(32)))
    driver = GpuSource(FakeNvml(1, gpm=False), clock=lambda: f.now)
    f.run(3)
    f.model.gpus = gpus.view(driver.poll(), {"GPU-0": ("TP0",)})
    f.run(2)
    m = f.snapshot().gpus[0].by_mode["DECODE"]
    assert (m.sm_busy, m.dram_busy) == (None, None)
    assert m.kernel_running == 0.97


def test_a_recording_without_times_of_readings_has_no_estimates() -> None:
    f = Feed(lambda r, n, t, g: Step("DECODE", 32, 32, 9_000, load=Load(32)))
    f.run(2)
    (old,) = gpus.view(GpuSource(FakeNvml(1), clock=lambda: f.now).poll(), {"GPU-0": ("TP0",)})
    f.model.gpus = (replace(old, mono_ns=None),)
    f.run(2)
    assert f.snapshot().gpus[0].by_mode == {}
