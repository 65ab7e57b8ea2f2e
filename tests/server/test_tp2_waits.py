"""One rank of two is slowed down: the other says whom it waits for, and the finding what that one did."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil
import pytest
from sgtop_core.model.snapshot import Rank, Snapshot
from sgtop_core.session import Session
from sgtop_probes.sched.threads import threads_of

from tests.sched import rig
from tests.server.traffic import Background
from tools.sglang_cpu.server import CpuServer

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each rank needs a CPU of its own")


def pin(server: CpuServer) -> tuple[int, int]:
    """TP0 to the last CPU of this process's, everything else of the server to the others; both ranks' pids."""
    zero, one = server.schedulers()
    cpus = sorted(os.sched_getaffinity(0))
    main = psutil.Process(server.pid)
    for pid in (main.pid, *(p.pid for p in main.children(recursive=True))):
        for tid in threads_of(pid):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(tid, {cpus[-1]} if pid == zero else cpus[:-1])
    return zero, one


def rank(shot: Snapshot, label: str) -> Rank:
    """One of the two."""
    return next(r for r in shot.ranks if r.rank == label)


def waited(shot: Snapshot) -> float:
    """Ms that TP1 waited for TP0 in the window."""
    gaps = rank(shot, "TP1").gaps
    return gaps.causes_ms.get("waiting for TP0", 0.0) if gaps is not None else 0.0


def level_a(shot: Snapshot) -> bool:
    """Scheduling samples are the kernel's own switches."""
    cpu = rank(shot, "TP0").cpu
    return cpu is not None and cpu.level == "A"


def test_a_busy_loop_beside_one_rank_makes_the_other_wait_for_it(server_tp2: CpuServer) -> None:
    zero, _ = pin(server_tp2)
    cpu = max(os.sched_getaffinity(0))
    session = Session(f":{server_tp2.port}")
    session.start()
    try:
        with Background(server_tp2.client, workers=3):

            def until(what: object, seconds: float) -> Snapshot:
                end = time.monotonic() + seconds
                while not what(shot := session.snapshot()):  # type: ignore[operator]
                    assert time.monotonic() < end, (shot.ranks, shot.alerts, shot.log[-8:])
                    time.sleep(0.25)
                return shot

            until(lambda s: s.attach.state == "live" and len(s.ranks) == 2 and all(r.modes for r in s.ranks), 60)

            def held_up(s: Snapshot) -> bool:
                did = rank(s, "TP0").holds_up_ms
                return (
                    waited(s) > 100
                    and any(a.id == "rank-holds-up" and a.rank == "TP0" and a.active for a in s.alerts)
                    and (not level_a(s) or did.get("preempted", 0.0) > 0.2 * sum(did.values()))
                )

            with rig.running(rig.BUSY, "hog", str(cpu), stranger=True):
                shot = until(held_up, 30)
            for label in ("TP0", "TP1"):
                gaps = rank(shot, label).gaps
                assert gaps is not None
                assert sum(gaps.causes_ms.values()) == pytest.approx(gaps.quantiles_ms.total, rel=1e-6)
            assert "waiting for TP0" not in rank(shot, "TP0").gaps.causes_ms  # type: ignore[union-attr]
            found = next(a for a in shot.alerts if a.id == "rank-holds-up" and a.rank == "TP0")
            assert "TP0 holds up TP1" in found.title
            assert "waited for TP0: TP1 " in found.evidence
            assert "meanwhile TP0 was: " in found.evidence
            assert zero == rank(shot, "TP0").pid
    finally:
        session.stop()
