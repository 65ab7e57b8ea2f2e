"""What an attached sgtop costs a server on the CPU: decode throughput, and the gap between steps, with and without.

The scheduler has one CPU to itself, everything else (HTTP, detokenizer, load, sgtop) the others. Each measurement is
the same work: the same prompts, the same number of tokens, at full batch; attached and not attached take turns, each
first as often as the other. The agent's thread, which comes with sgtop, runs on the others too, as it would on a host
with more CPUs; ``--agent-beside`` leaves it on the scheduler's, where it takes its time from the scheduler. The speed
of a shared host wanders by 20 % within a minute: so the measurements are short, and many. Times are the witness's,
which is in the scheduler in both cases.

    flock /tmp/sgtop-bench.lock python bench/throughput_cpu.py
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from common import PARTS, REPO, Bench, Steps, alternate, cpu_server, header, quantiles, ratio, result, say

CLIENT = """
import sys, time
from sgtop_core.session import Session
for line in sys.stdin:
    if line == "on\\n":
        session = Session(sys.argv[1])
        session.start()
        while any(rank.state != "live" for rank in session.snapshot().ranks): time.sleep(0.02)
    else:
        session.stop()
    print(line, end="", flush=True)
"""


class Sgtop:
    """sgtop's session in a process of its own, attached or not."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running
        self._now = "off"

    def be(self, what: str) -> None:
        """Attach (``on``) or detach (``off``), and wait until that is so."""
        if what == self._now:
            return
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        self._running.stdin.write(what + "\n")
        self._running.stdin.flush()
        if self._running.stdout.readline() != what + "\n":
            raise RuntimeError(f"sgtop's process ended with {self._running.wait()}")
        self._now = what


@contextmanager
def sgtop(port: int) -> Iterator[Sgtop]:
    """One that is not attached yet."""
    env = {**os.environ, "PYTHONPATH": ":".join(str(REPO / part) for part in PARTS)}
    command = [sys.executable, "-c", CLIENT, f":{port}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as running:
        try:
            yield Sgtop(running)
        finally:
            running.terminate()


def apart(scheduler: int) -> None:
    """Move the agent's thread to the CPUs of this process."""
    for task in Path(f"/proc/{scheduler}/task").iterdir():
        if (task / "comm").read_text().strip() == "sgtop-agent":
            os.sched_setaffinity(int(task.name), os.sched_getaffinity(0))


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
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--agent-beside", action="store_true", help="the agent's thread shares the scheduler's CPU")
    parser.add_argument("--version", default="0.5.20")
    given = parser.parse_args()
    header()
    gaps: dict[str, list[float]] = {"off": [], "on": []}
    p99: dict[str, list[float]] = {"off": [], "on": []}
    with cpu_server(given.version, split=True) as bench, sgtop(bench.server.port) as client:

        def measure(name: str) -> float:
            client.be(name)
            if name == "on" and not given.agent_beside:
                apart(bench.schedulers[0])
            steps = work(bench, given.bs, given.tokens)
            between = steps.gaps_ms()
            gaps[name] += list(between)
            p99[name].append(float(np.percentile(between, 99)))
            return float((steps.t0.size - 1) / (steps.t0[-1] - steps.t0[0]) * 1e9)

        for _ in range(3):  # the first ones warm up
            work(bench, given.bs, given.tokens)
        pairs = alternate(given.pairs, lambda: measure("off"), lambda: measure("on"))
    for i in range(0, len(pairs), 10):
        say(f"  pairs {i + 1} to {i + 10}", ", ".join(f"{off:.0f}/{on:.0f}" for off, on in pairs[i : i + 10]))
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
