"""How long a main thread stands still for an attach, by its own clock, for each way in.

A target spins in Python and notes every stall longer than 20 µs. Around each attach the longest of them is taken; the
ways are interleaved, with a control that does nothing, so that the noise of the machine is seen. The main thread of the
target has a CPU to itself where there are two.

    flock /tmp/sgtop-bench.lock python bench/attach_pause.py [--times 40] [--realtime]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from common import header, quantiles, result, say
from sgtop_probes.attach import AttachOptions, open_rank, payload, tracer
from sgtop_probes.client import Connection

from tests.attach import rig

COUNT = b"try:\n exec('import __main__;__main__.RUNS+=1')\nexcept BaseException:pass\n"


def ways(version: tuple[int, int], realtime: bool) -> dict[str, Callable[[rig.Target], Connection | None]]:
    """Name → what is done to the target."""
    agent = payload.build(payload.agent_folder(), version)
    found: dict[str, Callable[[rig.Target], Connection | None]] = {
        "nothing": lambda t: time.sleep(0.05),
        "pending call, main thread borrowed": lambda t: _queue(t, agent.blob, "main"),
        "pending call, helper thread borrowed": lambda t: _queue(t, agent.blob, "helper"),
        "whole attach (tiny agent)": _attach,
    }
    if realtime:
        # An agent's thread would inherit the real-time class and share the CPU with a main thread that never rests.
        del found["whole attach (tiny agent)"]
    return found


def _queue(t: rig.Target, blob: bytes, thread: str) -> None:
    tracer.run(t.pid, COUNT, blob, thread)
    time.sleep(0.02)


def _attach(t: rig.Target) -> Connection:
    return open_rank(t.rank, options=AttachOptions(package=rig.tiny_agent(), poke=None))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=40, help="attaches of each way")
    parser.add_argument(
        "--realtime", action="store_true", help="the target at SCHED_FIFO: shows the method, not the load"
    )
    args = parser.parse_args()
    header()
    mine = f"3.{sys.version_info[1]}"
    windows: dict[str, list[tuple[int, int]]] = {}
    with rig.target("parked_spin", helpers=0, seconds=3600, env={"STALL_NS": "20000"}) as t:
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) > 1:
            for tid in map(int, os.listdir(f"/proc/{t.pid}/task")):
                os.sched_setaffinity(tid, {cpus[-1]} if tid == t.pid else set(cpus[:-1]))
            os.sched_setaffinity(0, set(cpus[:-1]))
        if args.realtime:
            os.sched_setscheduler(t.pid, os.SCHED_FIFO, os.sched_param(1))
        for _ in range(args.times):
            for name, act in ways((3, sys.version_info[1]), args.realtime).items():
                start = time.perf_counter_ns()
                connection = act(t)
                end = time.perf_counter_ns()
                if connection is not None:
                    connection.close()
                time.sleep(0.1)
                windows.setdefault(name, []).append((start, end))
        gaps = [(length, at) for length, at in t.end()["gaps"]]
    figures = {}
    for name, spans in windows.items():
        longest = [max((g for g, at in gaps if at > a and at - g < b), default=0) / 1e6 for a, b in spans]
        say(f"{name}", quantiles(longest, "ms"))
        figures[name] = sorted(longest)[len(longest) // 2]
    result(bench="attach_pause", python=mine, realtime=args.realtime, median_ms=figures)


if __name__ == "__main__":
    main()
