"""CUPTI's clock: nanoseconds, TSC ticks, steps, noise."""

from __future__ import annotations

import numpy as np
import pytest
from sgtop_core.kernels.clock import WIDE_AT_FIRST, Clock
from sgtop_core.kernels.ring import ClockSample

REAL = 1_764_000_000_000_000_000
MONO = 5_000_000_000_000
TSC = 2.4


def real(mono: int, step: int = 0) -> int:
    return REAL + (mono - MONO) + step


def tsc(mono: int) -> int:
    return int(mono * TSC) + 12345


def sample(mono: int, ticks: int, epoch: int = 1, width: int = 700) -> ClockSample:
    return ClockSample(mono - width // 2, ticks, mono + width // 2, epoch)


def convert(clock: Clock, ticks: list[int], returned: int) -> list[int]:
    return clock.convert(np.array(ticks, np.int64), returned).tolist()


def test_no_sample() -> None:
    with pytest.raises(ValueError, match="no clock sample"):
        Clock().convert(np.array([1], np.int64), 0)


def test_nanoseconds_are_exact_from_the_first_sample() -> None:
    clock = Clock()
    clock.add(sample(MONO, real(MONO)))
    for k in range(1, 200):
        clock.add(sample(MONO + k * 50_000_000, real(MONO + k * 50_000_000), epoch=1 + k // 20))
        assert convert(clock, [real(MONO + k * 50_000_000 - 1_234_567)], MONO + k * 50_000_000) == [
            MONO + k * 50_000_000 - 1_234_567
        ]
    assert clock.switches == 0
    assert clock.fit is not None
    assert clock.fit.slope == 1.0


def test_noise_of_the_readings_stays_small() -> None:
    rng = np.random.default_rng(3)
    clock = Clock()
    now = MONO
    clock.add(sample(now, tsc(now)))
    clock.add(sample(now + 1_000, tsc(now + 1_000)))
    for _ in range(300):
        now += 50_000_000
        width = int(rng.integers(400, 2_000))
        at = now + int(rng.integers(-width // 2, width // 2))
        clock.add(ClockSample(now - width // 2, tsc(at), now + width // 2, 1))
    errors = [abs(convert(clock, [tsc(now - d)], now)[0] - (now - d)) for d in (0, 10_000_000, 900_000_000)]
    assert max(errors) < 2_000
    assert clock.switches == 0


def test_switch_to_tsc_ticks_keeps_both_maps() -> None:
    """Torch's profiler ran once: ticks change their kind. Buffers from before may still come."""
    clock = Clock()
    for k in range(10):
        clock.add(sample(MONO + k * 50_000_000, real(MONO + k * 50_000_000), epoch=1))
    later = MONO + 30_000_000_000
    for k in range(10):
        at = later + k * 50_000_000
        clock.add(sample(at, tsc(at), epoch=2))
    assert clock.switches == 1
    assert convert(clock, [real(MONO + 400_000_000)], MONO + 460_000_000) == [MONO + 400_000_000]
    assert abs(convert(clock, [tsc(later + 220_000_000)], later + 250_000_000)[0] - later - 220_000_000) < 1_000


@pytest.mark.parametrize("step", [-3_000_000_000, 3_000_000_000, 40_000_000, -40_000_000])
def test_realtime_is_stepped(step: int) -> None:
    clock = Clock()
    for k in range(20):
        at = MONO + k * 50_000_000
        clock.add(sample(at, real(at, step if k >= 10 else 0)))
    at = MONO + 19 * 50_000_000
    assert clock.switches == 1
    assert convert(clock, [real(at - 1_000_000, step)], at) == [at - 1_000_000]


def test_a_sample_torn_by_preemption_is_ignored() -> None:
    clock = Clock()
    for k in range(10):
        at = MONO + k * 50_000_000
        clock.add(sample(at, real(at)))
    at = MONO + 10 * 50_000_000
    clock.add(ClockSample(at, real(at) + 4_000_000, at + 8_000_000, 1))
    assert clock.switches == 0
    assert convert(clock, [real(at)], at + 9_000_000) == [at]


def test_memory_is_bounded() -> None:
    clock = Clock()
    for k in range(5_000):
        at = MONO + k * 50_000_000
        clock.add(sample(at, real(at, 10_000_000_000 * (k // 10))))
    assert len(clock._pieces) <= 64
    assert all(len(p.samples) <= 128 for p in clock._pieces)


def test_a_first_sample_that_was_interrupted_maps_nothing() -> None:
    """Its reading is anywhere in 170 ms: every kernel converted with it would seem to lie before tracing was on."""
    clock = Clock()
    clock.add(ClockSample(MONO, real(MONO + 165_000_000), MONO + 170_000_000, 1))
    assert not clock.ready
    at = MONO + 200_000_000
    clock.add(sample(at, real(at)))
    assert clock.ready
    assert convert(clock, [real(at)], at + 1_000) == [at]


def test_a_host_that_always_interrupts_gets_a_poor_map_and_not_none() -> None:
    clock = Clock()
    for k in range(WIDE_AT_FIRST):
        at = MONO + k * 50_000_000
        clock.add(sample(at, real(at), width=2_000_000))
    assert clock.ready
    assert convert(clock, [real(MONO)], MONO + 400_000_000) == [MONO]
