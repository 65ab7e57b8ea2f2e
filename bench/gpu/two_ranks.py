"""One model on two GPUs (TP 2): communication kernels on both ranks, and a CPU hog at one of them that delays both.

    python -m tools.sglang_gpu start .bundle/site.txz -- --tp-size 2 --served-model-name qwen3-8b
    PYTHONPATH=.:bench:/tmp/sgtop-gpu/site python bench/gpu/two_ranks.py --out OUT [--bs 8]

Wanted: as many communication kernels a step on both ranks as torch's
profiler sees on the first; their time alone never more than their time; the finding names the rank beside which the hog
runs, and no other rank. OUT gets a recording of the hog (tp2-contention.sgtop). Exit status 1 where that is not so.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import header, result, say
from kernels_server import Talk, live, switch
from record_demos import Scene, record
from sgtop_core.model.snapshot import Alert, Rank
from sgtop_core.session import Session

from tests.sched import rig

NAME = "batch-job"
TRACED_S = 6.0


def communication(rank: Rank) -> dict[str, Any]:
    """What the kernels of a rank say of its communication while it decodes."""
    view = rank.tracing
    assert view is not None
    decode = next(m for m in view.modes if m.mode == "DECODE")
    rows = [k for k in decode.rows if k.category == "communication"]
    return {
        "traced_s": view.traced_s,
        "busy": view.busy_share,
        "communication": view.communication_share,
        "alone": view.communication_exposed_share,
        "forwards": decode.forwards,
        "per_step": sum(k.per_step or 0.0 for k in rows),
        "us_per_step": sum((k.per_step or 0.0) * k.avg_us for k in rows),
        "names": [k.name for k in rows],
    }


def traced(port: int) -> dict[str, dict[str, Any]]:
    """``communication`` of every rank over some seconds of continuous tracing."""
    session = live(port)
    try:
        switch(session, "on", "tracing")
        time.sleep(TRACED_S)
        ranks = session.snapshot().ranks
        switch(session, "off", "off")
    finally:
        session.stop()
    return {rank.rank: communication(rank) for rank in ranks}


def profiled(port: int) -> tuple[float, float]:
    """Launches and µs a step of NCCL's kernels on the first rank, by torch's profiler."""
    kernels, steps = Talk(port).profile()
    rows = [us for name, each in kernels.items() if "nccl" in name.lower() for _, us in each]
    return len(rows) / max(steps, 1), sum(rows) / max(steps, 1)


def hog(seen: list[Alert], waits: list[str]) -> Scene:
    """A busy stranger on the CPU of the second rank's scheduler, in the second third."""

    def meanwhile(session: Session, seconds: float) -> None:
        time.sleep(seconds / 3)
        pid = session.snapshot().ranks[1].pid
        assert pid is not None
        threads = {int(t): os.sched_getaffinity(int(t)) for t in os.listdir(f"/proc/{pid}/task")}
        cpu = max(os.sched_getaffinity(pid))
        try:
            for thread in threads:
                os.sched_setaffinity(thread, {cpu})
            with rig.running(rig.BUSY, NAME, str(cpu), stranger=True):
                time.sleep(seconds / 3)
                snapshot = session.snapshot()
                seen.extend(a for a in snapshot.alerts if a.active)
                waits.extend(f"{r.rank}: {r.gaps.causes_ms if r.gaps else None}" for r in snapshot.ranks)
        finally:
            for thread, before in threads.items():
                try:
                    os.sched_setaffinity(thread, before)
                except OSError:
                    continue  # a thread that has ended
        time.sleep(seconds / 3)

    says = "two H200, 8B at TP 2: a busy process takes the CPU of one rank"
    return Scene("tp2-contention", says, 90, 30.0, meanwhile)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--port", type=int, default=30000)
    given = parser.parse_args()
    header()
    given.out.mkdir(parents=True, exist_ok=True)
    seen: list[Alert] = []
    waits: list[str] = []
    with Talk(given.port).decoding(given.bs):
        ranks = traced(given.port)
        launches, us = profiled(given.port)
        path = record(hog(seen, waits), f":{given.port}", given.out, kernels="windows")
    say("recording", f"{path}, {path.stat().st_size:,} bytes")
    for label, figures in ranks.items():
        say(label, figures)
    say("torch", f"{launches:.2f} NCCL kernels a step on the first rank, {us:.1f} µs")
    for text in waits:
        say("gaps", text)
    for alert in seen:
        say("alert", f"{alert.severity}: {alert.title} | {alert.evidence} | {alert.next}")
    counted = all(abs(r["per_step"] - launches) < 0.02 * max(launches, 1) and launches > 0 for r in ranks.values())
    alone = all(0 <= r["alone"] <= r["communication"] <= r["busy"] for r in ranks.values())
    blamed = [a.rank for a in seen if a.id == "preempted" and NAME in a.title]
    ok = len(ranks) == 2 and counted and alone and blamed == [list(ranks)[1]]
    result(bench="two_ranks", bs=given.bs, launches=[round(r["per_step"], 2) for r in ranks.values()],
           torch_launches=round(launches, 2), communication=[r["communication"] for r in ranks.values()],
           alone=[r["alone"] for r in ranks.values()], blamed=blamed, failed=not ok)  # fmt: skip
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
