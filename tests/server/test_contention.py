"""Whose fault a gap is, on a real server with real trouble: competitors, a quota, collections, a blocked thread.

The scheduler is pinned to one CPU, everything else of the server, the clients and sgtop to the others. Other work on
this machine may be found too, so a test asks for its own culprit, not for silence about all others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from sgtop_core.model.snapshot import Alert, Rank, Snapshot
from sgtop_core.session import Session
from sgtop_probes.sched.threads import threads_of

from tests.sched import rig
from tests.server.servers import Config, Pool
from tests.server.traffic import Background
from tools.sglang_cpu.server import CpuServer

SABOTEUR = Path(__file__).parent / "saboteur"

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the scheduler needs a CPU of its own")


@pytest.fixture
def victim_cpu() -> Iterator[int]:
    """The scheduler's CPU; the test, with its clients and sgtop, leaves it alone."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    os.sched_setaffinity(0, before - {cpu})
    yield cpu
    os.sched_setaffinity(0, before)


def everybody(server: CpuServer) -> list[int]:
    """All processes of the server."""
    main = psutil.Process(server.pid)
    return [main.pid, *(p.pid for p in main.children(recursive=True))]


def pin(server: CpuServer, cpu: int) -> int:
    """The scheduler to ``cpu``, the server's other processes elsewhere; the scheduler's pid."""
    (scheduler,) = server.schedulers()
    others = os.sched_getaffinity(0)
    for pid in everybody(server):
        for tid in threads_of(pid):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(tid, {cpu} if pid == scheduler else others)
    return scheduler


class Look:
    """A session and patience."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def now(self) -> Snapshot:
        """The newest snapshot."""
        return self.session.snapshot()

    @property
    def rank(self) -> Rank:
        """The only rank."""
        return self.now.ranks[0]

    def alerts(self) -> list[Alert]:
        """Findings that hold now."""
        return [a for a in self.now.alerts if a.active]

    def wait(self, what: Callable[[], object], seconds: float) -> float:
        """Seconds until ``what`` was true."""
        begin = time.monotonic()
        while not what():
            assert time.monotonic() - begin < seconds, (
                self.rank.cpu,
                self.rank.gaps,
                self.now.alerts,
                self.now.log[-8:],
            )
            time.sleep(0.1)
        return time.monotonic() - begin

    def says(self, rule: str, text: str = "") -> Alert | None:
        """A finding of this rule whose title or evidence has the text."""
        return next((a for a in self.alerts() if a.id == rule and text in a.title + a.evidence), None)

    def whole(self) -> None:
        """The causes of the gaps sum to the gaps."""
        gaps = self.rank.gaps
        assert gaps is not None
        assert sum(gaps.causes_ms.values()) == pytest.approx(gaps.quantiles_ms.total, rel=1e-6)


@contextmanager
def watching(server: CpuServer, *, workers: int = 3) -> Iterator[Look]:
    """A session with traffic, in its steady state."""
    with ExitStack() as stack:
        stack.enter_context(Background(server.client, workers=workers))
        session = Session(f":{server.port}")
        session.start()
        stack.callback(session.stop)
        look = Look(session)
        look.wait(lambda: look.now.attach.state == "live" and look.rank.cpu is not None and look.rank.modes, 30)
        yield look


SLACK_S = 5.0
"""The bound in the issue is 5 s from the cause; a busy machine may take as much again to run sgtop at all."""


@pytest.mark.parametrize("competitors", [1, 3])
def test_competitors_are_named_and_forgotten(server: CpuServer, victim_cpu: int, competitors: int) -> None:
    pin(server, victim_cpu)
    with watching(server) as look:
        assert look.rank.cpu
        if look.rank.cpu.level != "A":
            pytest.skip(f"level A needs {look.rank.cpu.message}")
        with ExitStack() as stack:
            hogs = [
                stack.enter_context(rig.running(rig.BUSY, f"hog{i}", str(victim_cpu), stranger=True))
                for i in range(competitors)
            ]
            mine = [f"({h.pid}" for h in hogs]  # "(812)", and "(812, ended)" once it has
            look.wait(lambda: look.says("preempted") and any(look.says("preempted", m) for m in mine), 5 + SLACK_S)
            time.sleep(5)
            cpu, gaps = look.rank.cpu, look.rank.gaps
            assert cpu
            assert gaps
            by = {c.pid: c for c in cpu.culprits}
            assert any(h.pid in by for h in hogs), cpu
            assert max(by[h.pid].ms for h in hogs if h.pid in by) > 100
            assert gaps.causes_ms["preempted"] > 50, gaps.causes_ms
            look.whole()
            found = look.says("preempted")
            assert found
            assert found.next.startswith(("taskset -acp", "sudo taskset -acp", "chrt", "sudo chrt"))
        look.wait(lambda: not any(look.says("preempted", m) for m in mine), 15)


def test_a_short_burst_is_found_again_and_again(server: CpuServer, victim_cpu: int) -> None:
    pin(server, victim_cpu)
    with watching(server) as look, rig.running(rig.BURST, "burst", str(victim_cpu), stranger=True) as burst:
        seen = 0
        end = time.monotonic() + 12
        while time.monotonic() < end:
            cpu = look.rank.cpu
            seen += cpu is not None and burst.pid in {c.pid for c in cpu.culprits}
            time.sleep(0.25)
        assert seen > 12, look.rank.cpu


def test_a_quota_is_found_and_gone(server: CpuServer, victim_cpu: int) -> None:
    scheduler = pin(server, victim_cpu)
    with watching(server) as look:
        with rig.quota(scheduler, 0.04):
            look.wait(lambda: look.says("throttled"), 5 + SLACK_S)
            time.sleep(3)
            found, cpu, gaps = look.says("throttled"), look.rank.cpu, look.rank.gaps
            assert found
            assert cpu
            assert gaps
            assert "0.04 CPUs" in found.title
            assert "cpu.cfs_quota_us" in found.next or "cpu.max" in found.next
            assert cpu.throttled_ms
            assert cpu.nr_throttled
            assert gaps.causes_ms.get("throttled", 0) > 100, gaps.causes_ms
            look.whole()
        look.wait(lambda: not look.says("throttled"), 20)


@pytest.fixture
def trouble(servers: Pool, tmp_path: Path) -> tuple[CpuServer, Path]:
    """A server with the saboteur in it, and the file that tells it what to do."""
    path = servers.folder / "trouble"
    env = (("PYTHONPATH", str(SABOTEUR)), ("SGTOP_SABOTEUR", str(path)))
    path.unlink(missing_ok=True)
    return servers.get(Config(env=env)), path


def test_forced_collections_are_their_own_cause(trouble: tuple[CpuServer, Path], victim_cpu: int) -> None:
    server, path = trouble
    pin(server, victim_cpu)
    with watching(server) as look:
        path.write_text("gc")
        try:
            look.wait(lambda: look.says("gc-stops"), 5 + SLACK_S)
            time.sleep(3)
            gaps = look.rank.gaps
            assert gaps
            assert gaps.causes_ms["gc"] > 100, gaps.causes_ms
            look.whole()
        finally:
            path.unlink()
        look.wait(lambda: not look.says("gc-stops"), 40)


def test_a_blocked_thread_is_its_own_cause(trouble: tuple[CpuServer, Path], victim_cpu: int) -> None:
    server, path = trouble
    pin(server, victim_cpu)
    with watching(server) as look:
        before = look.rank.gaps
        path.write_text("sleep")
        try:
            time.sleep(6)
            gaps = look.rank.gaps
        finally:
            path.unlink()
        assert before
        assert gaps
        # 20 ms each ten turns of the loop: a large part of the time between forwards.
        assert gaps.causes_ms["blocked"] > 100, gaps.causes_ms
        assert gaps.causes_ms["blocked"] > 5 * before.causes_ms.get("blocked", 0.0)
        look.whole()


def test_an_idle_server_that_spins_is_no_finding(servers: Pool, victim_cpu: int) -> None:
    """Without ``--sleep-on-idle`` the loop takes all of its CPU to find nothing to do: busy polling, not contention."""
    server = servers.get(Config(spins=True))
    scheduler = pin(server, victim_cpu)
    session = Session(f":{server.port}")
    session.start()
    look = Look(session)
    try:
        look.wait(lambda: look.now.attach.state == "live" and look.rank.cpu is not None, 30)
        before, begin = psutil.Process(scheduler).cpu_times(), time.monotonic()
        seen: dict[str, Alert] = {}
        while time.monotonic() - begin < 20:
            seen.update({a.id: a for a in look.now.alerts})
            time.sleep(0.25)
        after, seconds = psutil.Process(scheduler).cpu_times(), time.monotonic() - begin
        rank = look.rank
    finally:
        session.stop()
    assert seen == {}
    assert not any("began" in line for line in look.now.log)
    assert rank.state == "live"
    assert rank.modes == {}
    assert rank.cpu
    # all the CPU time that others left it, so that what it did is what this test is about
    wanted = seconds - (rank.cpu.wait_ms or 0.0) / 5_000 * seconds
    assert after.user + after.system - before.user - before.system > 0.5 * wanted
    # other threads of its own process do run on that CPU now and then; they are known for what they are
    assert {c.kind for c in rank.cpu.culprits if c.pid in {server.pid, scheduler}} <= {"server"}
    assert rank.stages_s["idle"] > 0.8 * look.now.covered_s


def test_a_healthy_minute_blames_neither_the_server_nor_sgtop(server: CpuServer, victim_cpu: int) -> None:
    """Idle for a while, then loaded: whatever is found must be somebody else's doing."""
    pin(server, victim_cpu)
    session = Session(f":{server.port}")
    session.start()
    look = Look(session)
    mine = {os.getpid(), *everybody(server)}
    seen: dict[str, Alert] = {}
    try:
        look.wait(lambda: look.now.attach.state == "live", 30)

        def observe(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                seen.update({a.id: a for a in look.alerts() if a.severity != "info"})
                time.sleep(0.25)

        observe(15)
        assert set(seen) <= {"helper-cpu"}, seen
        with Background(server.client, workers=3):
            observe(45)
    finally:
        session.stop()
    for a in seen.values():
        if a.id == "preempted":
            assert not any(f"(pid {pid}" in a.title for pid in mine), a
    assert not {"preempted-by-server", "throttled", "numa", "too-many-threads"} & set(seen), seen
