"""What the hooks cost the scheduler's main thread a step: CPU time of a fake event loop with and without them.

    python bench/hook_cost.py [--pairs 15] [--steps 4000]

The loop has the method layout of SGLang 0.5.20 and no work behind it, so the difference is the hooks. What they
wrote is taken every 50 steps, as the agent's thread does 20 times a second at 1,000 steps/s, and that is not counted:
the agent's thread pays it. Interleaved (A B A B): each pair is one run without and one with hooks. Prints the median
and the 95 % interval (bootstrap) of the difference in µs a step. Needs no SGLang.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "agent"), str(ROOT / "tests" / "agent")]

import fake_sglang  # noqa: E402
from sgtop_agent.find import Found  # noqa: E402
from sgtop_agent.hooks import Hooks  # noqa: E402

WARM = 500
FLUSH_STEPS = 50


def cpu_per_step(steps: int, hooked: bool, generation: str) -> tuple[float, float]:
    """(µs of main-thread CPU a step, hooks' own median estimate in µs or 0). Runs the loop on this thread."""
    scheduler = fake_sglang.make(generation, graph_max_bs=8)
    undo = fake_sglang.install(scheduler.modes)
    # Eight requests that decode for ever: one step a turn.
    for _ in range(8):
        scheduler.submit(fake_sglang.Req(prompt=4, new_tokens=steps * 2 + WARM * 2 + 100))
    hooks = None
    if hooked:
        hooks = Hooks(Found(scheduler, "event_loop_overlap", threading.get_ident(), threading.get_native_id()))
    marks = {"aside": 0}

    def count() -> None:
        if scheduler.forward_ct % FLUSH_STEPS == 0:
            begin = time.thread_time_ns()
            if hooks is not None:
                for _ in hooks.drain(time.monotonic_ns()):
                    pass
            if scheduler.forward_ct == WARM:
                marks["begin"] = time.thread_time_ns()
            elif scheduler.forward_ct == WARM + steps:
                marks["end"] = begin
                scheduler.gracefully_exit = True
            elif scheduler.forward_ct > WARM:
                marks["aside"] += time.thread_time_ns() - begin

    scheduler.step_work = count
    if hooks is not None:
        hooks.install()
        hooks.calibrate()
    scheduler.event_loop_overlap()
    undo()
    own = 0.0
    if hooks is not None:
        own = hooks.take_hook_ns()[1] / 1e3
        hooks.undo()
        assert not hooks.off(), hooks.off()
    return (marks["end"] - marks["begin"] - marks["aside"]) / steps / 1e3, own


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--generation", choices=fake_sglang.GENERATIONS, default="ingest")
    args = parser.parse_args()
    differences, owns, bare = [], [], []
    for _ in range(args.pairs):
        without, _ = cpu_per_step(args.steps, False, args.generation)
        with_hooks, own = cpu_per_step(args.steps, True, args.generation)
        differences.append(with_hooks - without)
        owns.append(own)
        bare.append(without)
    low, high = interval(differences)
    print(f"generation {args.generation}, {args.pairs} pairs of {args.steps} steps, Python {sys.version.split()[0]}")
    print(f"bare loop            {statistics.median(bare):6.2f} µs a step")
    print(f"hooks cost           {statistics.median(differences):6.2f} µs a step (95 % {low:.2f} to {high:.2f})")
    print(f"hooks say themselves {statistics.median(owns):6.2f} µs a step (median of medians)")


if __name__ == "__main__":
    main()
