"""CUPTI's clock on CLOCK_MONOTONIC.

CUPTI's ticks are CLOCK_REALTIME nanoseconds until torch's profiler has run once in the process, and TSC ticks for
ever after; CLOCK_REALTIME itself may be stepped. So the helper samples both clocks at each flush, and a map is kept a
*piece*: a stretch in which one affine map explains every sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .ring import ClockSample

STEP_NS = 200_000
"""A sample that the piece misses by more starts a new piece."""
MAX_WIDTH_NS = 100_000
"""Samples whose two readings lie further apart are useless: the thread was interrupted between them."""
WIDE_AT_FIRST = 8
"""So many useless samples before one is taken after all: on a host that always interrupts, a poor map beats none."""
_SAMPLES = 128
_PIECES = 64


@dataclass(frozen=True, slots=True)
class Fit:
    """monotonic = mono0 + slope · (ticks - cupti0)."""

    mono0: int
    cupti0: int
    slope: float
    error_ns: float
    """Largest residual of the samples, or half the width of the only one."""

    def apply(self, ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        """CLOCK_MONOTONIC nanoseconds. Differences are taken in integers: a float holds no such timestamp."""
        delta: NDArray[np.int64] = ticks - np.int64(self.cupti0)
        scaled: NDArray[np.int64] = delta if self.slope == 1.0 else np.rint(delta * self.slope).astype(np.int64)
        scaled += np.int64(self.mono0)
        return scaled


class _Piece:
    def __init__(self, first: ClockSample) -> None:
        self.epoch = first.epoch
        self.samples: list[ClockSample] = [first]
        self.fit = Fit((first.mono0 + first.mono1) // 2, first.cupti, 1.0, (first.mono1 - first.mono0) / 2)

    def explains(self, s: ClockSample) -> bool:
        if len(self.samples) < 3:
            # Two samples of one instant say nothing about the slope. What can be said: is it a clock of nanoseconds,
            # or are two clocks so far apart that no plausible tick rate joins them?
            base = self.samples[0]
            ticks, ns = s.cupti - base.cupti, (s.mono0 + s.mono1) // 2 - (base.mono0 + base.mono1) // 2
            return ns >= 0 and 0 <= ticks <= 10 * ns + 10 * MAX_WIDTH_NS
        at = int(self.fit.apply(np.array([s.cupti], np.int64))[0])
        first, last = self.samples[0], self.samples[-1]
        # The slope is as good as the samples are narrow against their span.
        width = max(x.mono1 - x.mono0 for x in self.samples)
        slack = STEP_NS + (s.mono1 - last.mono1) * width / max(last.mono0 - first.mono0, width, 1)
        return s.mono0 - slack <= at <= s.mono1 + slack

    def add(self, s: ClockSample) -> None:
        self.samples.append(s)
        if len(self.samples) > _SAMPLES:
            del self.samples[1 : _SAMPLES // 2]  # keep the ends: the slope comes from the span
        if len(self.samples) <= 16 or len(self.samples) % 8 == 0:  # later ones change little
            self._refit()

    def _refit(self) -> None:
        mono = np.array([(s.mono0 + s.mono1) // 2 for s in self.samples], np.int64)
        ticks = np.array([s.cupti for s in self.samples], np.int64)
        x, y = (ticks - ticks[-1]).astype(float), (mono - mono[-1]).astype(float)
        span = float(y[-1] - y[0])
        slope = 1.0
        if span > 0 and float(x[-1] - x[0]) > 0:
            weight = 1.0 / np.array([max(s.mono1 - s.mono0, 50) for s in self.samples], float)
            mx, my = np.average(x, weights=weight), np.average(y, weights=weight)
            var = np.average((x - mx) ** 2, weights=weight)
            slope = float(np.average((x - mx) * (y - my), weights=weight) / var) if var else 1.0
            width = max(x.mono1 - x.mono0 for x in self.samples)
            if abs(slope - 1.0) < max(2e-5, 3 * width / span):
                slope = 1.0  # nanoseconds: CLOCK_REALTIME and CLOCK_MONOTONIC are slewed alike
        residual = y - slope * x
        middle = float(np.median(residual))
        self.fit = Fit(int(mono[-1] + round(middle)), int(ticks[-1]), slope, float(np.abs(residual - middle).max()))


class Clock:
    """Pieces of CUPTI's clock, oldest first, and the map for records of an epoch."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._wide = 0
        self.switches = 0
        """How often the clock changed its kind or was stepped."""

    def add(self, sample: ClockSample) -> None:
        """Take a sample; samples come in order."""
        if sample.mono1 - sample.mono0 > MAX_WIDTH_NS:
            self._wide += 1
            if self._pieces or self._wide < WIDE_AT_FIRST:
                return
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.explains(sample):
            last.add(sample)
            last.epoch = sample.epoch
            return
        if last is not None:
            self.switches += 1
        self._pieces.append(_Piece(sample))
        del self._pieces[:-_PIECES]

    @property
    def ready(self) -> bool:
        """Whether there is a sample at all."""
        return bool(self._pieces)

    @property
    def fit(self) -> Fit | None:
        """The newest piece's map."""
        return self._pieces[-1].fit if self._pieces else None

    def convert(self, ticks: NDArray[np.int64], returned_ns: int) -> NDArray[np.int64]:
        """CLOCK_MONOTONIC of records' ticks that came in a buffer given back at ``returned_ns``.

        The piece is the newest one under which the records end before they were given back and not long before:
        clocks of two kinds are years apart, and a step of CLOCK_REALTIME moves records into the future or the past.

        Raises:
            ValueError: no sample yet.
        """
        if not self._pieces:
            raise ValueError("no clock sample yet")
        if not len(ticks):
            return ticks
        newest = ticks.max(keepdims=True)
        best, least = self._pieces[-1].fit, None
        for piece in reversed(self._pieces):
            age = returned_ns - int(piece.fit.apply(newest)[0])
            miss = -age if age < -1_000_000 else max(0, age - 2_000_000_000)
            if miss == 0:
                return piece.fit.apply(ticks)
            if least is None or miss < least:
                best, least = piece.fit, miss
        return best.apply(ticks)
