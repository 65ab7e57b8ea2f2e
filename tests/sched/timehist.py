"""The second opinion: ``perf sched record`` and ``perf sched timehist`` over the same interval."""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from sgtop_probes.sched.tracefs import in_private_mount


@dataclass(frozen=True)
class Run:
    """One line of timehist: switched in at ``on`` (s) after ``wait_ms`` and ``delay_ms``, out at ``off``."""

    on: float
    off: float
    wait_ms: float
    delay_ms: float
    state: str


class Perf:
    """Records every switch of the host until ``stop``, on CLOCK_MONOTONIC."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "perf.data"
        command = ["perf", "sched", "record", "-k", "CLOCK_MONOTONIC", "-o", str(self.file), "--", "cat"]
        self.child = subprocess.Popen(
            in_private_mount(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        # perf creates the file before it records, and records at once when its workload (cat) runs.
        for _ in range(200):
            if self.file.exists() or self.child.poll() is not None:
                break
            time.sleep(0.05)
        time.sleep(0.5)

    def stop(self) -> None:
        said, _ = self.child.communicate(timeout=60)
        assert self.child.returncode == 0, said.decode()

    def runs(self, tid: int) -> list[Run]:
        """The thread's runs, in their order."""
        done = subprocess.run(
            ["perf", "sched", "timehist", "-i", str(self.file), "--tid", str(tid), "--state"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        out = []
        for line in done.stdout.splitlines():
            m = re.match(r"\s*(\d+\.\d+) \[\d+\]\s+.*?\[\S+\]\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)", line)
            if m:
                off, wait, delay, ran = float(m[1]), float(m[2]), float(m[3]), float(m[4])
                out.append(Run(off - ran / 1e3, off, wait, delay, m[5]))
        return out


@dataclass(frozen=True)
class Totals:
    """Of one thread between two times; an interval counts where it ends (the thread runs again)."""

    preemptions: int
    preempted_ms: float
    longest_ms: float
    sleeps: int
    wakeup_ms: float


def totals(runs: list[Run], begin: float, end: float) -> Totals:
    """Between two times in seconds."""
    preempted: list[float] = []
    sleeps, wakeup = 0, 0.0
    for before, run in itertools.pairwise(runs):
        if not begin <= run.on < end:
            continue
        if before.state.startswith("R"):
            preempted.append(run.wait_ms)
        else:
            sleeps += 1
            wakeup += run.delay_ms
    return Totals(len(preempted), sum(preempted), max(preempted, default=0.0), sleeps, wakeup)
