"""Attach to a busy server on a GPU: how long, how long the scheduler stands still, and what arrives."""

from __future__ import annotations

import argparse
import time

import numpy as np
from common import header, quantiles, result, say
from host import Listener, decoding, rank, witness


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attaches", type=int, default=20)
    given = parser.parse_args()
    header()
    seen, target = witness(), rank()
    took, stood, hooks, gpu_ms, graph = [], [], [], [], set()
    with decoding(8):
        first = seen.count()
        time.sleep(2)
        usual = seen.steps(first).gaps_ms()
        for _ in range(given.attaches):
            first, start = seen.count(), time.monotonic()
            with Listener(target) as listener:
                listener.wait(lambda each: each.rows("forward"))
                took.append((time.monotonic() - start) * 1e3)
                time.sleep(0.5)
                stood.append(float(seen.steps(first).gaps_ms().max()))
                rows = listener.rows("forward")
                stat = listener.wait(lambda each: each.frames("stat"))[-1]
            hooks.append(stat["hook_p50_ns"] / 1e3)
            graph |= {row["graph"] for row in rows}
            gpu_ms += [(row["gpu1"] - row["gpu0"]) / 1e6 for row in rows if row["gpu0"] > 0 and row["gpu1"] > 0]
            time.sleep(0.2)
        with Listener(target) as listener:
            time.sleep(8)
            settled = [stat["hook_p50_ns"] / 1e3 for stat in listener.frames("stat")[-5:]]
    say("capabilities", listener.hello["caps"])
    say("attach to forwards", quantiles(took, "ms"))
    say("usual gap", quantiles(usual, "ms"))
    say("longest gap at attach", quantiles(stood, "ms"))
    say("hooks a step, p50", quantiles(hooks, "µs"))
    say("the same, 3 s and more after", quantiles(settled, "µs"))
    say("GPU time of a forward", quantiles(gpu_ms, "ms") if gpu_ms else "none seen")
    say("graph flags", sorted(graph))
    result(
        bench="gpu_attach",
        attach_p95_ms=float(np.percentile(took, 95)),
        gap_at_attach_p50_ms=float(np.median(stood)),
        hook_us_p50=float(np.median(hooks)),
        hook_us_p50_settled=float(np.median(settled)),
        gpu_ms_p50=float(np.median(gpu_ms)) if gpu_ms else None,
        graph=sorted(graph),
    )


if __name__ == "__main__":
    main()
