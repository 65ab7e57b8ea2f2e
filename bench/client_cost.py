"""What sgtop's reading side costs: 8 ranks × 1,000 steps/s through the frame parser, the model and 4 snapshots/s.

Prints the share of one core, by part, and the process's memory over time. Simulated time runs as fast as it can; only
the CPU time of the work itself is counted, not the making of the frames. Run alone:

    flock /tmp/sgtop-bench.lock python bench/client_cost.py --seconds 120
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from random import Random

import numpy as np
import psutil
from sgtop_agent.flushes import FLUSH_NS
from sgtop_agent.wire import Frame, pack
from sgtop_core.findings.engine import Engine
from sgtop_core.jsonout import as_json
from sgtop_core.model.model import Model
from sgtop_core.model.windows import level
from sgtop_core.session import TURN_NS
from sgtop_core.simulate.loop import Behaviour, Idle, Load, SimRank, Step, hello
from sgtop_probes import codec

S = 1_000_000_000
WARM_NS = 5 * S
"""Not counted: tables that grow to their size, imports on first use."""
LOOP_NS = 2 * S
"""Length of the piece of stream that is made once and then repeated with later times."""

_TIMES = {"t", "t0", "t1", "gpu0", "gpu1", "gpu2"}


def busy(per_s: float) -> Behaviour:
    """Decode steps at this rate, every 50th turn a prefill, now and then a collection."""

    def script(rank: int, turn: int, t: float, rng: Random) -> Step | Idle:
        load = Load(64, 3, 0.2, 150_000, 90_000)
        if turn % 50 == 0:
            return Step("EXTEND", 2, 700, 1.8e6 / per_s, graph=0, cached=300, load=load)
        return Step("DECODE", 64, 64, 0.92e6 / per_s - 40, launch_us=200, finished=int(turn % 9 == 0), load=load,
                    gc=(0, 0.2) if turn % 100 == 0 else None)  # fmt: skip

    return script


class Stream:
    """Frames of one rank for ever."""

    def __init__(self, rank: int, start: int, script: Behaviour) -> None:
        self.sim = SimRank(rank, script, hello(rank, tp=8, now=start), start)
        self._pieces: list[list[Frame]] = []
        for now in range(start + FLUSH_NS, start + LOOP_NS + 1, FLUSH_NS):
            self.sim.run(now)
            self._pieces.append(self.sim.frames(now))
        self._steps = self.sim.ct

    def __iter__(self) -> Iterator[bytes]:
        """Bytes of one flush after the other."""
        turn = 0
        while True:
            for piece in self._pieces:
                yield b"".join(pack(self._shift(f, turn)) for f in piece)
            turn += 1

    def _shift(self, f: Frame, turn: int) -> Frame:
        if f["k"] == "stat":
            return {**f, "t": f["t"] + turn * LOOP_NS, "ct": f["ct"] + turn * self._steps,
                    "agent_cpu_ns": f["agent_cpu_ns"] + turn * 5_600_000}  # fmt: skip
        cols = {}
        for name, raw in f["c"].items():
            by = LOOP_NS if name in _TIMES else self._steps if name == "ct" else 0
            cols[name] = (np.frombuffer(raw, np.int64) + by * turn).tobytes() if by else raw
        return {**f, "c": cols}


def main() -> None:
    """Run and print."""
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seconds", type=int, default=60, help="simulated seconds")
    ap.add_argument("--ranks", type=int, default=8)
    ap.add_argument("--rate", type=float, default=1000, help="steps/s of each rank")
    ap.add_argument("--window", type=float, default=5.0)
    a = ap.parse_args()
    now = 1_000 * S
    streams = [Stream(r, now, busy(a.rate)) for r in range(a.ranks)]
    steps = sum(s.sim.ct for s in streams) / len(streams) / (LOOP_NS / S)
    model, engine = Model(), Engine()
    readers = []
    for r, s in enumerate(streams):
        model.add(f"TP{r}", s.sim.hello["pid"])
        model.hello(f"TP{r}", s.sim.hello, now)
        readers.append(codec.reader())
    feeds = [iter(s) for s in streams]
    cost = {"parse": 0, "model": 0, "snapshot": 0, "findings": 0, "json": 0}
    me = psutil.Process()
    gc.collect()
    gc.freeze()
    print(f"{a.ranks} ranks × {steps:.0f} steps/s, window {a.window:g} s")
    for i in range(-WARM_NS // TURN_NS, a.seconds * S // TURN_NS):
        now += TURN_NS
        if i == 0:
            cost = dict.fromkeys(cost, 0)
        for r, feed in enumerate(feeds if now // FLUSH_NS > (now - TURN_NS) // FLUSH_NS else ()):
            data = next(feed)
            t = time.thread_time_ns()
            for f in readers[r].feed(data):
                model.frame(f"TP{r}", f, now)
            cost["parse"] += time.thread_time_ns() - t
        t = time.thread_time_ns()
        new = model.advance(now)
        cost["model"] += time.thread_time_ns() - t
        if new:
            t = time.thread_time_ns()
            shot = model.snapshot(level(a.window), now, now / S)
            cost["snapshot"] += time.thread_time_ns() - t
            t = time.thread_time_ns()
            engine.look(model, now, now / S)
            cost["findings"] += time.thread_time_ns() - t
            t = time.thread_time_ns()
            as_json(shot)
            cost["json"] += time.thread_time_ns() - t
        done = (i + 1) * TURN_NS / S
        if done > 0 and done % max(a.seconds // 6, 1) == 0:
            parts = "  ".join(f"{k} {v / done / 1e7:.2f}%" for k, v in cost.items())
            total = sum(v for k, v in cost.items() if k != "json") / done / 1e7
            rss = me.memory_info().rss / 2**20
            print(f"{done:6.0f} s  {total:.2f}% of a core without json  ({parts})  rss {rss:.0f} MiB")


if __name__ == "__main__":
    main()
