"""A busy stranger on the scheduler's CPU while one request decodes: gaps grow, the alert names it with GPU idle ms.

    python bench/gpu/contention.py [--seconds 12]         # run_all.py starts the server

The scheduler is put on one CPU; 12 s without, with and again without the competitor, kernel tracing on, so that the
kernels say "GPU idle". Prints what the screen would show, and the GPU's counters. Exit status 1 when the gaps did not
grow, or no alert named the competitor, or it did not go.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from typing import Any

from common import header, pin, result, say
from host import PORT, decoding
from kernels_server import live, switch
from sgtop_core.model.snapshot import Alert, Snapshot
from sgtop_core.session import Session

from tests.sched import rig

NAME = "batch-job"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0)
    given = parser.parse_args()
    header()
    session = live(PORT, window_s=5.0)
    pid = session.snapshot().ranks[0].pid
    assert pid is not None
    allowed = os.sched_getaffinity(pid)
    cpu = max(allowed)
    try:
        with decoding(1):
            pin(pid, {cpu})
            switch(session, "on", "tracing")
            time.sleep(given.seconds)
            before = figures(session)
            say("gpus, decode alone", [dataclasses.asdict(g) for g in session.snapshot().gpus])
            start = time.monotonic()
            with rig.running(rig.BUSY, NAME, str(cpu), stranger=True) as hog:
                alert, took = named(session, f"(pid {hog.pid})", start, given.seconds)
                time.sleep(max(0.0, start + given.seconds - time.monotonic()))
                during = figures(session)
                newest = find(session.snapshot(), f"(pid {hog.pid})") or alert
            start = time.monotonic()
            while find(session.snapshot(), "") is not None and time.monotonic() < start + 40:
                time.sleep(0.1)
            gone = time.monotonic() - start
            after = figures(session)
    finally:
        pin(pid, set(allowed))
        session.stop()
    for name, each in (("alone", before), ("with it", during), ("afterwards", after)):
        say(name, each)
    for text in (newest.title, newest.evidence, newest.next) if newest else ():
        say("alert", text)
    grown = during["between_ms"] / max(before["between_ms"], 1e-9)
    ok = grown > 1.5 and newest is not None and "GPU idle" in newest.title and gone < 40
    say("gaps grew", f"{grown:.1f} times; alert after {took:.1f} s, gone {gone:.1f} s after the end")
    result(bench="gpu_contention", grown=round(grown, 2), alert_s=round(took, 2), gone_s=round(gone, 2),
           title=newest.title if newest else None, next=newest.next if newest else None, failed=not ok)  # fmt: skip
    return int(not ok)


def figures(session: Session) -> dict[str, Any]:
    """Of the newest window: gaps between forwards and kernels, decode steps, waits."""
    rank = session.snapshot().ranks[0]
    mode, gaps, kernels = rank.modes.get("DECODE"), rank.gaps, rank.kernel_gaps
    return {
        "between_ms": round(gaps.quantiles_ms.total, 1) if gaps else 0.0,
        "label": gaps.label if gaps else None,
        "causes_ms": {k: round(v, 1) for k, v in gaps.causes_ms.items()} if gaps else {},
        "steps_per_s": round(mode.steps_per_s, 1) if mode else None,
        "step_ms": (mode.step_ms.p50, mode.step_ms.p99) if mode else None,
        "gpu_idle_ms": round(kernels.quantiles_ms.total, 1) if kernels else None,
        "gpu_idle_causes_ms": {k: round(v, 1) for k, v in kernels.causes_ms.items()} if kernels else {},
        "wait_ms": round(rank.cpu.wait_ms, 1) if rank.cpu and rank.cpu.wait_ms is not None else None,
    }


def find(snapshot: Snapshot, who: str) -> Alert | None:
    """The active alert about waits that names ``who``."""
    return next((a for a in snapshot.alerts if a.active and a.id == "preempted" and who in a.title), None)


def named(session: Session, who: str, start: float, seconds: float) -> tuple[Alert | None, float]:
    """The first alert that names ``who``, and after how many seconds."""
    while (alert := find(session.snapshot(), who)) is None and time.monotonic() < start + seconds:
        time.sleep(0.1)
    return alert, time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
