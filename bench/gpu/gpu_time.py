"""The agent's GPU time of forwards against torch's own profiler, for the same steps.

torch's profiler records twenty decode steps (``/start_profile`` with ``num_steps``). All kernels of one graph replay
carry one correlation id in its trace; from the first one's start to the last one's end is the replay's time. The agent
measured the same steps with CUDA events at the same time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from common import header, quantiles, result, say
from host import Listener, client, decoding, rank

SMALLEST_REPLAY = 50
"""Kernels: what has fewer under one correlation id is no replay of a whole forward."""


def profile(steps: int, out: Path) -> dict[str, Any]:
    """The trace of ``steps`` steps.

    Raises:
        TimeoutError: SGLang did not write one within three minutes.
    """
    order = {"output_dir": str(out), "num_steps": steps, "activities": ["CPU", "GPU"], "with_stack": False}
    client().call("POST", "/start_profile", {**order, "record_shapes": False})
    end = time.monotonic() + 180
    while time.monotonic() < end:
        for file in out.rglob("*.json.gz"):
            if time.time() - file.stat().st_mtime > 2:
                with gzip.open(file) as trace:
                    read: dict[str, Any] = json.load(trace)
                    return read
        time.sleep(0.5)
    raise TimeoutError("no trace within three minutes")


def replays(trace: dict[str, Any], real_minus_mono: int) -> list[tuple[float, float]]:
    """(start, end) of each graph replay in the trace, in ns of CLOCK_MONOTONIC, in order."""
    base = trace.get("baseTimeNanoseconds", 0) - real_minus_mono
    groups: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            start = base + event["ts"] * 1e3
            groups[event["args"]["correlation"]].append((start, start + event["dur"] * 1e3))
    return sorted((min(a for a, _ in g), max(b for _, b in g)) for g in groups.values() if len(g) > SMALLEST_REPLAY)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    header()
    real_minus_mono = time.time_ns() - time.monotonic_ns()
    with tempfile.TemporaryDirectory() as tmp, decoding(given.bs), Listener(rank()) as listener:
        time.sleep(1)
        trace = profile(given.steps, Path(tmp))
        time.sleep(1)
        rows = [row for row in listener.rows("forward") if row["gpu0"] > 0 and row["gpu1"] > 0]
        notes = [note["text"] for note in listener.frames("note")]
    theirs = replays(trace, real_minus_mono)
    ends = np.array([row["gpu1"] for row in rows])
    pairs = []
    for start, end in theirs:
        ours = rows[int(np.abs(ends - end).argmin())]
        pairs.append((ours["gpu1"] - ours["gpu0"], end - start, ours["gpu0"] - start, ours["gpu1"] - end))
    say("notes of the agent", notes[-5:])
    say("replays in the trace", len(theirs))
    if not pairs:
        raise SystemExit("no replay in torch's trace, or no GPU times from the agent")
    a = np.array(pairs, float)
    share = a[:, 0] / a[:, 1]
    say("torch, a replay", quantiles(a[:, 1] / 1e6, "ms"))
    say("sgtop, the same", quantiles(a[:, 0] / 1e6, "ms"))
    say("sgtop ÷ torch", quantiles(share, ""))
    say("start, sgtop − torch", quantiles(a[:, 2] / 1e3, "µs"))
    say("end, sgtop − torch", quantiles(a[:, 3] / 1e3, "µs"))
    result(
        bench="gpu_time",
        bs=given.bs,
        replays=len(pairs),
        ratio_p50=float(np.median(share)),
        ratio_min=float(share.min()),
        ratio_max=float(share.max()),
        within_5_percent=bool(abs(np.median(share) - 1) <= 0.05),
    )


if __name__ == "__main__":
    main()
