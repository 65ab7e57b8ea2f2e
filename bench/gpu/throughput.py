"""Decode throughput with sgtop attached ÷ without, with CUDA graphs, in interleaved pairs on one endless decode.

Its context grows all the time, so two pairs, A B and B A, are one comparison, in which a steady drift cancels.
The steps are counted by the witness in the scheduler.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from common import alternate, attached, header, ratio, result, say, undrifted
from host import PORT, decoding, witness


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bs", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    header()
    seen = witness()

    def rate() -> float:
        first = seen.count()
        time.sleep(given.seconds)
        steps = seen.steps(first)
        if not (steps.bs == given.bs).all():
            raise SystemExit(f"the batch was not {given.bs} all the time: {np.unique(steps.bs)}")
        return float((steps.t0.size - 1) / (steps.t0[-1] - steps.t0[0]) * 1e9)

    def on() -> float:
        with attached(PORT):
            time.sleep(0.3)
            got = rate()
        time.sleep(0.2)
        return got

    with decoding(given.bs):
        pairs = alternate(given.pairs, rate, on)
    middle, low, high = ratio(undrifted(pairs))
    say("steps/s, off and on", " and ".join(f"{np.median([p[i] for p in pairs]):.2f}" for i in (0, 1)))
    say(
        "throughput on ÷ off",
        f"{middle:.4f}, 95 % interval {low:.4f} to {high:.4f} ({len(pairs)} pairs)",
    )
    say("pairs", " ".join(f"{a:.1f}/{b:.1f}" for a, b in pairs))
    result(bench="gpu_throughput", bs=given.bs, ratio=middle, low=low, high=high, pairs=len(pairs))


if __name__ == "__main__":
    main()
