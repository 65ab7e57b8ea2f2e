"""What the hooks cost the scheduler's main thread a step: CPU time of a fake event loop with and without them.

    python bench/hook_cost.py [--pairs 60] [--generation ingest]

The loop has the method layout of a generation of SGLang and no work behind it, so the difference is the hooks. It runs
without a stop, while hooks go on and off again: A B A B, twenty blocks of fifty steps each. The CPU time of a block is
read; what the hooks wrote in it is taken after it, as the agent's thread does 20 times a second at 1,000 steps/s, and
not counted. A pair is the difference of the medians of neighbours. Prints its median with a 95 % interval (bootstrap)
and the tenth percentile of the blocks, which a busy machine disturbs less. Needs no SGLang.
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
sys.path[:0] = [str(ROOT), str(ROOT / "agent")]

from sgtop_agent.find import Found  # noqa: E402
from sgtop_agent.hooks import Hooks  # noqa: E402

from tests.agent import fake_sglang  # noqa: E402

BLOCK = 50
BLOCKS = 20
WARM_BLOCKS = 4
"""Blocks after each change that are not counted: CPython adapts its bytecode to what it sees."""


class Alternate:
    """Called in every step; turns the hooks on and off and keeps the CPU time of each block, in µs a step."""

    def __init__(self, scheduler: fake_sglang.Scheduler, pairs: int) -> None:
        self.scheduler, self.runs_left = scheduler, 2 * pairs
        self.without: list[list[float]] = []
        self.hooked: list[list[float]] = []
        self.says: list[float] = []
        self._hooks: Hooks | None = None
        self._blocks: list[float] = []
        self._since = time.thread_time_ns()

    def __call__(self) -> None:
        """One step."""
        if self.scheduler.forward_ct % BLOCK:
            return
        now = time.thread_time_ns()
        self._blocks.append((now - self._since) / BLOCK / 1e3)
        if self._hooks is not None:
            for _ in self._hooks.drain(time.monotonic_ns()):
                pass
        if len(self._blocks) == WARM_BLOCKS + BLOCKS:
            self._change()
        self._since = time.thread_time_ns()

    def _change(self) -> None:
        (self.hooked if self._hooks is not None else self.without).append(self._blocks[WARM_BLOCKS:])
        self._blocks = []
        self.runs_left -= 1
        if self._hooks is not None:
            self.says.append(self._hooks.take_hook_ns()[1] / 1e3)
            self._hooks.undo()
            assert not self._hooks.off(), self._hooks.off()
            self._hooks = None
        else:
            ident, tid = threading.get_ident(), threading.get_native_id()
            self._hooks = Hooks(Found(self.scheduler, "event_loop_overlap", ident, tid))
            self._hooks.install()
            self._hooks.calibrate()
        if not self.runs_left:
            self.scheduler.gracefully_exit = True


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--generation", choices=fake_sglang.GENERATIONS, default="ingest")
    args = parser.parse_args()
    scheduler = fake_sglang.make(args.generation, graph_max_bs=8)
    undo = fake_sglang.install(scheduler.modes)
    scheduler.submit(*(fake_sglang.Req(prompt=4, new_tokens=1 << 40) for _ in range(8)))  # decode for ever
    measured = Alternate(scheduler, args.pairs)
    scheduler.step_work = measured
    scheduler.event_loop_overlap()
    undo()
    pairs = zip(measured.without, measured.hooked, strict=True)
    differences = [statistics.median(b) - statistics.median(a) for a, b in pairs]
    low, high = interval(differences)
    bare = [x for run in measured.without for x in run]
    hooked = [x for run in measured.hooked for x in run]
    tenth = statistics.quantiles(hooked, n=10)[0] - statistics.quantiles(bare, n=10)[0]
    python = sys.version.split()[0]
    print(f"generation {args.generation}, {args.pairs} pairs of {BLOCKS * BLOCK} steps, Python {python}")
    print(f"bare loop             {statistics.median(bare):6.2f} µs a step")
    print(f"hooks cost            {statistics.median(differences):6.2f} µs a step (95 % {low:.2f} to {high:.2f})")
    print(f"  undisturbed blocks  {tenth:6.2f} µs a step (tenth percentiles)")
    print(f"hooks say themselves  {statistics.median(measured.says):6.2f} µs a step")


if __name__ == "__main__":
    main()
