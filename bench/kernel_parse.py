"""What reading kernels costs sgtop: records a second on one core, and the share of a core at 60,000 a second.

    python bench/kernel_parse.py [--seconds 5] [--layout 13.0]

Prints a JSON line. The buffers look like a decode's: runs of some hundreds of kernels with a few copies in between,
300 different kernels, two streams, forwards of 10 ms. ``pipeline`` is the whole of what a rank's tracker does with a
record, from the bytes in the ring to sums and the tables shown; ``parse`` its first part alone. Rates are medians over
rounds, in CPU time of this process, pinned to one core. The share of a core is that of a rank's steady 60,000 records a
second as a server brings them: 20 polls and 4 views a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from sgtop_core.kernels.layout import STRIDES, dtypes
from sgtop_core.kernels.parse import Parser
from sgtop_core.kernels.ring import Buffer, ClockSample
from sgtop_core.kernels.tracker import KernelTracker

START_NS = 1_000_000_000_000
SLOT = 512 * 1024
STEP_NS, KERNELS_A_STEP, COPIES_A_STEP = 10_000_000, 850, 5


def step_buffer(layout: str, rng: np.random.Generator, start_ns: int, steps: int) -> bytes:
    """The records of some steps, back to back."""
    types = dtypes(STRIDES[layout])
    out = bytearray()
    for s in range(steps):
        t = start_ns + s * STEP_NS
        copies = np.zeros(COPIES_A_STEP, types[1])
        copies["kind"], copies["copy"], copies["bytes"], copies["stream"] = 1, 1, 4096, 9
        copies["start"] = t + np.arange(COPIES_A_STEP) * 2_000
        copies["end"] = copies["start"] + 1_000
        kernels = np.zeros(KERNELS_A_STEP, types[10])
        kernels["kind"], kernels["stream"], kernels["graph"] = 10, np.arange(KERNELS_A_STEP) % 50 == 0, 5
        kernels["start"] = t + 20_000 + np.arange(KERNELS_A_STEP) * 11_000
        kernels["end"] = kernels["start"] + rng.integers(1_000, 10_500, KERNELS_A_STEP)
        kernels["name"] = 0x7F00_0000_0000 + 64 * (np.arange(KERNELS_A_STEP) % 300)
        out += copies[:3].tobytes() + kernels.tobytes() + copies[3:].tobytes()
    return bytes(out)


def forward_rows(start_ns: int, steps: int, first: int) -> dict[str, Any]:
    t = start_ns + np.arange(steps) * STEP_NS
    rows = {c: np.zeros(steps, np.int64) for c in ("runner", "bs", "graph")}
    return {**rows, "ct": first + np.arange(steps), "mode": np.full(steps, 2), "t0": t - 1_000_000, "t1": t,
            "gpu0": t, "gpu1": t + 9_500_000, "gpu2": t + 9_800_000}  # fmt: skip


class FakeRing:
    """Hands a tracker ready-made buffers as copies: what the ring reader does, without a server."""

    def __init__(self) -> None:
        self.lost = 0
        self.buffers: list[tuple[int, np.ndarray]] = []
        self.samples: list[ClockSample] = []
        self.order = 0

    def poll(self) -> list[Buffer]:
        out = []
        for returned, data in self.buffers:
            out.append(Buffer(self.order, 1, returned, data.copy()))
            self.order += 1
        self.buffers = []
        return out

    def clock_samples(self) -> list[ClockSample]:
        out, self.samples = self.samples, []
        return out

    def close(self) -> None:
        pass


class Load:
    """A tracker, and the make-believe server that feeds it."""

    def __init__(self, layout: str) -> None:
        self.layout, self.rng = layout, np.random.default_rng(1)
        self.tracker, self.ring = KernelTracker({2: "DECODE"}), FakeRing()
        self.parser = Parser(STRIDES[layout])
        self.tracker._ring, self.tracker._parser = self.ring, self.parser  # type: ignore[assignment]
        self.tracker.on_state({"mode": "on", "state": "tracing", "on": [1, START_NS], "t": START_NS})
        self.now, self.ct = START_NS, 0

    def make(self, steps: int) -> tuple[int, np.ndarray, dict[str, Any]]:
        """(when it came back, the buffer, rows of its forwards)."""
        data = np.frombuffer(step_buffer(self.layout, self.rng, self.now, steps), np.uint8)
        rows = forward_rows(self.now, steps, self.ct)
        self.now += steps * STEP_NS
        self.ct += steps
        return self.now, data, rows

    def give(self, made: list[tuple[int, np.ndarray, dict[str, Any]]]) -> None:
        """What arrives between two polls, and the poll. This is what is measured."""
        for returned, data, rows in made:
            self.ring.buffers.append((returned, data))
            self.ring.samples.append(ClockSample(returned - 300, returned, returned + 300, 1))
            self.tracker.on_forwards(rows)
        self.tracker.poll(made[-1][0])


def throughput(load: Load, seconds: float) -> tuple[list[float], list[float]]:
    """(pipeline, parse) records per CPU second of each round: as fast as it goes, 16 full buffers a poll."""
    size = STRIDES[load.layout]
    steps = SLOT // (KERNELS_A_STEP * size[10] + COPIES_A_STEP * size[1])
    records = 16 * steps * (KERNELS_A_STEP + COPIES_A_STEP)
    pipeline, parse = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rounds = [[load.make(steps) for _ in range(16)] for _ in range(8)]
        t = time.process_time()
        for made in rounds:
            for _, data, _ in made:
                load.parser.parse(data)
        parse.append(8 * records / (time.process_time() - t))
        t = time.process_time()
        for made in rounds:
            load.give(made)
        load.tracker.view(load.now, 60.0)
        pipeline.append(8 * records / (time.process_time() - t))
    return pipeline, parse


def steady(load: Load, seconds: int) -> float:
    """Share of a core at 60,000 records a second: 20 polls with two part-filled buffers each, and 4 views a second."""
    steps = round(60_000 / (KERNELS_A_STEP + COPIES_A_STEP) / 20)
    turns = [[load.make(1) for _ in range(steps)] for _ in range(20 * seconds)]
    begin = load.tracker.records
    t = time.process_time()
    for n, made in enumerate(turns):
        load.give(made)
        if n % 5 == 0:
            load.tracker.view(made[-1][0], 5.0)
    spent = time.process_time() - t
    return spent / seconds * 60_000 * seconds / (load.tracker.records - begin)


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--seconds", type=float, default=5.0)
    p.add_argument("--layout", choices=sorted(STRIDES), default="13.0")
    a = p.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pipeline, parse = throughput(Load(a.layout), a.seconds)
    share = steady(Load(a.layout), 20)
    rate = statistics.median(pipeline)
    info = Path("/proc/cpuinfo").read_text().splitlines()
    result = {
        "bench": "kernel_parse",
        "layout": a.layout,
        "rounds": len(pipeline),
        "pipeline_records_per_s": round(rate),
        "worst_pipeline_records_per_s": round(min(pipeline)),
        "parse_records_per_s": round(statistics.median(parse)),
        "core_share_at_60000_per_s": round(share, 4),
        "cpu": next((line.split(":")[1].strip() for line in info if "model name" in line), ""),
        "meets": rate >= 1e6 and share <= 0.10,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
