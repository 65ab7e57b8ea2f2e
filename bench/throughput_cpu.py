"""What an attached sgtop costs a server on the CPU: decode throughput, and the gap between steps, with and without.

The scheduler has one CPU to itself, everything else (HTTP, detokenizer, load, sgtop) the others. Each measurement is
the same work: the same prompts, the same number of tokens, at full batch; attached and not attached take turns. Times
are the witness's, which is in the scheduler in both cases.

    flock /tmp/sgtop-bench.lock python bench/throughput_cpu.py
"""

from __future__ import annotations

import argparse
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common import Bench, Steps, alternate, attached, cpu_server, header, quantiles, ratio, result, say


def work(bench: Bench, bs: int, tokens: int) -> Steps:
    """Decode ``tokens`` tokens for ``bs`` requests; the steps at full batch."""
    first = bench.witness.count()
    prompts = [[random.Random(i).randrange(6, 256) for _ in range(24)] for i in range(bs)]
    with ThreadPoolExecutor(bs) as pool:
        list(pool.map(lambda prompt: bench.client.generate(prompt, tokens), prompts))
    steps = bench.witness.steps(first)
    full = np.flatnonzero(steps.bs == bs)
    # From the first step at full batch to the last: all decode, for every request has the same length.
    cut = slice(full[0] + 1, full[-1])
    return Steps(*(column[cut] for column in (steps.ct, steps.t0, steps.t1, steps.mode, steps.bs)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--version", default="0.5.20")
    given = parser.parse_args()
    header()
    with cpu_server(given.version, split=True) as bench:
        work(bench, given.bs, given.tokens)  # the first one warms up
        gaps: dict[str, list[float]] = {"off": [], "on": []}
        p99: dict[str, list[float]] = {"off": [], "on": []}

        def measure(name: str) -> float:
            steps = work(bench, given.bs, given.tokens)
            between = steps.gaps_ms()
            gaps[name] += list(between)
            p99[name].append(float(np.percentile(between, 99)))
            rate = (steps.t0.size - 1) / (steps.t0[-1] - steps.t0[0]) * 1e9
            say(f"  {name}", f"{rate:.1f} steps/s, gap p50 {np.median(between):.3f} p99 {p99[name][-1]:.3f} ms")
            return float(rate)

        def on() -> float:
            with attached(bench.server.port):
                return measure("on")

        pairs = alternate(given.pairs, lambda: measure("off"), on)
    middle, low, high = ratio(pairs)
    say("throughput on ÷ off", f"{middle:.4f}, 95 % interval {low:.4f} to {high:.4f} ({len(pairs)} pairs)")
    for name, values in gaps.items():
        say(f"step gap, {name}", quantiles(values, "ms"))
    added = np.array(p99["on"]) - np.array(p99["off"])
    draws = np.median(np.random.default_rng(1).choice(added, (20_000, added.size)), axis=1)
    a_low, a_high = np.percentile(draws, [2.5, 97.5])
    say("added p99 of the gap", f"{np.median(added):.3f} ms, 95 % interval {a_low:.3f} to {a_high:.3f}")
    result(
        bench="throughput_cpu",
        ratio=middle,
        low=low,
        high=high,
        pairs=len(pairs),
        added_gap_p99_ms=float(np.median(added)),
        added_gap_p99_low_ms=float(a_low),
        added_gap_p99_high_ms=float(a_high),
    )


if __name__ == "__main__":
    main()
