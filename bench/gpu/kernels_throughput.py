"""Decode throughput with kernel tracing ÷ attached without it, in interleaved pairs on one endless decode.

    python bench/gpu/kernels_throughput.py --mode windows|on|off|profile [--bs 1] [--pairs 20] [--real --seconds 10]

``windows`` runs 0.1 s in 1 s instead of 1 s in 10 s: the same share of time traced, ten times the switches, so that a
pair takes seconds; with ``--real`` the default windows, of which 10 s hold one. ``off`` compares attached without
tracing to itself: the noise. ``profile`` is SGLang's own ``/start_profile`` for comparison: rate while it profiles ÷
without, and the seconds that ``/stop_profile`` takes, at last after 3 s of profiling.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import alternate, header, ratio, result, say, undrifted
from host import PORT, decoding, witness
from kernels_server import Talk, live, switch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("windows", "on", "off", "profile"), required=True)
    parser.add_argument("--bs", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--real", action="store_true", help="the default windows; with --seconds 10")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds after which profile begins no more pairs")
    given = parser.parse_args()
    header()
    seen = witness()

    def rate(seconds: float = given.seconds) -> float:
        first = seen.count()
        time.sleep(seconds)
        steps = seen.steps(first)
        return float((steps.t0.size - 1) / (steps.t0[-1] - steps.t0[0]) * 1e9)

    if given.mode == "profile":
        profile(given.bs, rate, given.pairs, given.budget)
        return
    session = live(PORT)
    stops = []

    def on() -> float:
        if given.mode == "off":
            return rate()
        if given.mode == "windows":
            short = {} if given.real else {"window_s": 0.1, "period_s": 1.0}
            reply = session.command(None, "kernels", {"mode": "windows", **short})
            if not reply["ok"]:
                raise SystemExit(reply["error"])
            time.sleep(0.3)
        else:
            switch(session, "on", "tracing")
            time.sleep(0.2)
        got = rate()
        t = time.monotonic()
        switch(session, "off", "off")
        stops.append(time.monotonic() - t)
        time.sleep(0.2)
        return got

    try:
        with decoding(given.bs, again=True):
            pairs = alternate(given.pairs, rate, on)
    finally:
        session.stop()
    middle, low, high = ratio(undrifted(pairs))
    say("steps/s, off and on", " and ".join(f"{statistics.median(p[i] for p in pairs):.2f}" for i in (0, 1)))
    say(
        "throughput on ÷ off",
        f"{middle:.4f}, 95 % interval {low:.4f} to {high:.4f} ({len(pairs)} pairs)",
    )
    say("pairs", " ".join(f"{a:.1f}/{b:.1f}" for a, b in pairs))
    stop_s = round(max(stops), 3) if stops else None
    result(bench="kernels_throughput", mode=given.mode, bs=given.bs, ratio=middle, low=low, high=high,
           pairs=len(pairs), stop_s_max=stop_s)  # fmt: skip


def profile(bs: int, rate: Any, most: int, budget: float) -> None:
    """SGLang's own profiler, for comparison."""
    talk = Talk(PORT)
    stops: list[float] = []

    def on(seconds: float | None = None) -> float:
        with tempfile.TemporaryDirectory() as folder:
            talk.post("/start_profile", {"activities": ["CPU", "GPU"], "with_stack": False, "output_dir": folder})
            got = float(rate() if seconds is None else rate(seconds))
            t = time.monotonic()
            talk.post("/stop_profile", {})
            stops.append(round(time.monotonic() - t, 2))
        time.sleep(0.5)
        return got

    end = time.monotonic() + budget
    pairs: list[tuple[float, float]] = []
    with decoding(bs, again=True):
        while len(pairs) < most and time.monotonic() < end:
            pairs += alternate(2, rate, on)
        short = list(stops)
        on(3.0)
    middle, low, high = ratio(undrifted(pairs))
    say(
        "throughput on ÷ off",
        f"{middle:.4f}, 95 % interval {low:.4f} to {high:.4f} ({len(pairs)} pairs)",
    )
    say("pairs", " ".join(f"{a:.1f}/{b:.1f}" for a, b in pairs))
    result(bench="kernels_throughput", mode="profile", bs=bs, ratio=middle, low=low, high=high, pairs=len(pairs),
           stop_s_p50=statistics.median(short), stop_s_max=max(short), stop_s_after_3_s=stops[-1])  # fmt: skip


if __name__ == "__main__":
    main()
