"""How long after its cause an alert stands on the screen, and after the cause's end is gone; on a real CPU server.

The scheduler has one CPU, everything else the others: one and three busy loops beside it, a quota of 0.04 CPUs, and
forced collections. The limit is 5 s from the cause to the alert.

    flock /tmp/sgtop-bench.lock python bench/alerts.py
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from common import header, quantiles, result, say

from tests.sched import rig
from tests.server.test_contention import SABOTEUR, Look, pin, watching
from tools.sglang_cpu.install import ensure
from tools.sglang_cpu.server import CpuServer, free_port

LIMIT_S = 5.0
Cause = AbstractContextManager[tuple[str, ...]]
"""Lasts as long as the block; gives what the alert's text must hold, one of them."""


@contextmanager
def hogs(count: int, cpu: int) -> Iterator[tuple[str, ...]]:
    """Busy loops on the scheduler's CPU; what the alert's text must hold, one of them."""
    with ExitStack() as stack:
        made = [stack.enter_context(rig.running(rig.BUSY, f"hog{i}", str(cpu), stranger=True)) for i in range(count)]
        yield tuple(f"({h.pid})" for h in made)


@contextmanager
def written(path: Path, what: str) -> Iterator[tuple[str, ...]]:
    """The saboteur in the scheduler does ``what``."""
    path.write_text(what)
    try:
        yield ("",)
    finally:
        path.unlink()


@contextmanager
def quota(pid: int) -> Iterator[tuple[str, ...]]:
    """A quota that bites."""
    with rig.quota(pid, 0.04):
        yield ("",)


def main() -> None:
    """Run and print; exit status 1 when an alert took longer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--version", default="0.5.20")
    given = parser.parse_args()
    header()
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {cpu})
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="sgtop-bench-") as folder:
        trouble = Path(folder) / "trouble"
        env = {"PYTHONPATH": str(SABOTEUR), "SGTOP_SABOTEUR": str(trouble)}
        port = free_port(31500, 31699)
        with CpuServer(ensure(given.version), port=port, log=Path(folder) / "log", env=env) as server:
            server.wait_healthy()
            scheduler = pin(server, cpu)
            causes: dict[str, tuple[str, Callable[[], Cause]]] = {
                "one busy loop": ("preempted", lambda: hogs(1, cpu)),
                "three busy loops": ("preempted", lambda: hogs(3, cpu)),
                "a quota of 0.04 CPUs": ("throttled", lambda: quota(scheduler)),
                "forced collections": ("gc-stops", lambda: written(trouble, "gc")),
            }
            with watching(server) as look:
                for _ in range(given.rounds):
                    for name, (rule, begin) in causes.items():
                        raised, cleared = once(look, rule, begin)
                        times.setdefault(name, []).append(raised)
                        say(name, f"alert `{rule}` after {raised:.1f} s, gone {cleared:.1f} s after the cause")
                        time.sleep(6)  # the window forgets it
    every = [t for each in times.values() for t in each]
    say("cause to alert", quantiles(every, "s"))
    result(bench="alerts", seconds={n: [round(t, 2) for t in v] for n, v in times.items()}, limit_s=LIMIT_S)
    sys.exit(max(every) > LIMIT_S)


def once(look: Look, rule: str, begin: Callable[[], Cause]) -> tuple[float, float]:
    """(seconds from the cause to the alert, from its end until the alert is gone)."""
    with begin() as texts:
        raised = look.wait(lambda: any(look.says(rule, text) for text in texts), 30)
        time.sleep(3)
    return raised, look.wait(lambda: not any(look.says(rule, text) for text in texts), 60)


if __name__ == "__main__":
    main()
