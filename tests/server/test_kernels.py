"""Kernel tracing inside a real scheduler; only libcupti is the mock, and CUDA is said to be initialised."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sgtop_core.jsonout import line
from sgtop_core.model.kernel_view import KernelView
from sgtop_core.session import Session, SessionOptions
from sgtop_probes.attach import payload

from tests.kernels.conftest import build_helper, build_mock
from tests.kernels.records import LAYOUTS
from tests.server.servers import Config, Pool
from tests.server.traces import from_outside, wait_without_agent
from tests.server.traffic import Background, ids
from tools.sglang_cpu.server import CpuServer

PRETENCE = Path(__file__).parents[1] / "kernels" / "pretence"


class Pretence:
    """A server whose scheduler seems to have a GPU."""

    def __init__(self, servers: Pool, layout: str = "13.0") -> None:
        build_helper()
        folder = servers.folder / "pretence"
        folder.mkdir(exist_ok=True)
        library = folder / "libcupti.so.13"
        if not library.exists():
            build_mock(folder)
        env = (
            ("PYTHONPATH", str(PRETENCE)),
            ("SGTOP_PRETENCE", str(library)),
            ("SGTOP_PRETENCE_FOLDER", str(folder)),
            ("SGTOP_PRETENCE_LAYOUT", " ".join(map(str, LAYOUTS[layout]))),
        )
        self.folder = folder
        self.server: CpuServer = servers.get(Config(env=env))
        (self.pid,) = self.server.schedulers()
        self.server.client.generate(ids(20, 1), 4)  # one forward, so that the mock is loaded

    def do(self, *call: str | int) -> dict[str, Any]:
        """Call the mock (or nothing) in the scheduler; what it counts."""
        answer = self.folder / f"{self.pid}.json"
        answer.unlink(missing_ok=True)
        with open(self.folder / f"{self.pid}.do", "w") as ask:
            ask.write(" ".join(map(str, call)) + "\n")
        end = time.monotonic() + 20
        while not answer.exists():
            assert time.monotonic() < end, "the pretence does not answer"
            time.sleep(0.01)
        out: dict[str, Any] = json.loads(answer.read_text())
        return out

    def wait_disabled(self, timeout_s: float) -> None:
        """Wait until no kind is enabled."""
        end = time.monotonic() + timeout_s
        while enabled := self.do()["enabled"]:
            assert time.monotonic() < end, f"still enabled: {enabled}"
            time.sleep(0.02)

    @contextlib.contextmanager
    def session(self, kernels: str, **more: Any) -> Iterator[Session]:
        """A session by pending call."""
        session = Session(
            f":{self.server.port}", SessionOptions(ways=("pending-call",), kernels=kernels, window_s=60.0, **more)
        )
        session.start()
        try:
            yield session
        finally:
            session.stop()

    def sgtop(self, *more: str) -> subprocess.Popen[str]:
        """``sgtop --json --kernels on`` in a process of its own."""
        line = [
            sys.executable,
            "-m",
            "sgtop_tui",
            "--attach",
            f":{self.server.port}",
            "--json",
            "--kernels",
            "on",
            *more,
        ]
        return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def gpu(servers: Pool) -> Iterator[Pretence]:
    pretence = Pretence(servers)
    yield pretence
    assert pretence.server.alive()
    pretence.do("mock_zero_every", 0)
    pretence.wait_disabled(3)
    counted = pretence.do()
    assert counted["mock"]["forbidden"] == counted["mock"]["dirty"] == 0


def until(session: Session, test: Callable[[KernelView], object], timeout: float = 40.0) -> KernelView:
    """Wait for what the session shows of kernels."""
    end = time.monotonic() + timeout
    view = None
    while time.monotonic() < end:
        ranks = session.snapshot().ranks
        view = ranks[0].tracing if ranks else None
        if view is not None and test(view):
            return view
        time.sleep(0.05)
    raise AssertionError(f"not seen within {timeout} s: {view}; log {session.snapshot().log}")


def switch(session: Session, mode: str) -> None:
    reply = session.command(None, "kernels", {"mode": mode})
    assert reply["ok"], reply


def steps(view: KernelView) -> dict[str, float | None]:
    return {m.mode: m.launches_per_step for m in view.modes}


def test_without_the_helper_all_else_works(gpu: Pretence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tmp_path / "sgtop_agent"
    shutil.copytree(payload.agent_folder(), agent, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setattr(payload, "agent_folder", lambda: agent)
    # First in this file: a helper that an earlier session left in the scheduler would be found and used.
    assert not any("memfd:sgtop" in name for name in from_outside(gpu.pid).named_maps)
    with gpu.session("on") as session, Background(gpu.server.client, workers=1) as traffic:
        view = until(session, lambda v: v.state == "failed")
        assert "sgring.so" in view.reason
        end = time.monotonic() + 20
        while not session.snapshot().ranks[0].modes.get("DECODE"):
            assert time.monotonic() < end, "steps are not seen"
            time.sleep(0.05)
    assert traffic.failures == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kernel_in_every_layout(servers: Pool, layout: str) -> None:
    p = Pretence(servers, layout)
    with p.session("on") as session, Background(p.server.client, workers=2) as traffic:
        view = until(session, lambda v: v.state == "tracing" and v.records > 5_000)
        assert view.cupti == LAYOUTS[layout][0]
        switch(session, "off")
        until(session, lambda v: v.state == "off")
        emitted = p.do()["mock"]["emitted"]
        # Kernels wait for the rows of their forwards before they are counted.
        view = until(session, lambda v: sum(m.launches for m in v.modes) >= emitted)
        assert view.records == sum(m.launches for m in view.modes) == emitted
        assert (view.lost_buffers, view.untimed) == (0, 0)
        assert steps(view)["DECODE"] == pytest.approx(52, abs=0.3)
        assert steps(view)["EXTEND"] == pytest.approx(32, abs=2)
        graphs = {m.mode: m.graph_share for m in view.modes}
        assert graphs["DECODE"] == 1.0
        assert {r.name for r in view.modes[0].rows} >= {"fused_moe_kernel", "RMSNormKernel", "memcpy HtoD"}
        text = line(session.snapshot())
    assert traffic.failures == []
    p.wait_disabled(3)
    wait_without_agent(p.pid, 3)
    rank = json.loads(text)["ranks"][0]
    assert rank["kernels"]["DECODE"][0]["count"] > 0
    assert sum(rank["gaps"]["kernel"]["histogram"]["counts"]) == rank["gaps"]["kernel"]["count"] > 0


def test_windows_the_users_profile_and_another_clock(gpu: Pretence, tmp_path: Path) -> None:
    with gpu.session("windows") as session, Background(gpu.server.client, workers=2) as traffic:
        first = until(session, lambda v: v.traced_s > 0.5 and v.records > 500)
        assert first.mode == "windows"
        switch(session, "on")
        until(session, lambda v: v.state == "tracing")
        registered = gpu.do()["mock"]["registered"]
        body = {"num_steps": 5, "activities": ["CPU"], "with_stack": False, "output_dir": str(tmp_path)}
        request = urllib.request.Request(
            f"{gpu.server.url}/start_profile", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=120).read()
        gpu.do("mock_clock", 1)  # torch's profiler leaves CUPTI counting TSC ticks
        until(session, lambda v: v.state == "tracing")
        end = time.monotonic() + 60
        while not list(tmp_path.rglob("*.trace.json.gz")) or gpu.do()["mock"]["registered"] == registered:
            assert time.monotonic() < end, "the user's trace was not written, or tracing did not come back"
            time.sleep(0.1)
        view = until(session, lambda v: v.state == "tracing")
        again = view.records
        view = until(session, lambda v: v.records > again + 5_000)
        assert steps(view)["DECODE"] == pytest.approx(52, abs=1)
    assert traffic.failures == []
    gpu.do("mock_clock", 0)


def test_records_without_timestamps_end_it(gpu: Pretence) -> None:
    with gpu.session("on") as session, Background(gpu.server.client, workers=2) as traffic:
        until(session, lambda v: v.state == "tracing" and v.records > 500)
        gpu.do("mock_zero_every", 5)
        view = until(session, lambda v: v.state == "failed")
        assert "without timestamps" in view.reason
        gpu.wait_disabled(5)
        assert until(session, lambda v: v.untimed > 0).untimed > 0
    assert traffic.failures == []


def test_two_clients_of_which_one_sleeps(gpu: Pretence) -> None:
    with gpu.session("on") as session, Background(gpu.server.client, workers=2) as traffic:
        until(session, lambda v: v.state == "tracing" and v.records > 500)
        slow = gpu.sgtop()
        try:
            assert slow.stdout is not None
            while not _tracing(slow.stdout.readline()).get("records"):
                pass
            slow.send_signal(signal.SIGSTOP)
            time.sleep(4.2)  # longer than the ring holds, shorter than a client may be silent
            slow.send_signal(signal.SIGCONT)
            end = time.monotonic() + 30
            while not _tracing(slow.stdout.readline()).get("lost_buffers"):
                assert time.monotonic() < end, "what it slept through was not counted as lost"
        finally:
            slow.kill()
            slow.communicate()
        before = session.snapshot().ranks[0].tracing
        assert before is not None
        view = until(session, lambda v: v.records > before.records + 1_000)
        assert view.lost_buffers == 0
        assert view.state == "tracing", "the other client's end must not switch it off"
    assert traffic.failures == []


def _tracing(text: str) -> dict[str, Any]:
    ranks = json.loads(text)["ranks"] if text else []
    return (ranks[0].get("tracing") or {}) if ranks else {}


def test_client_killed_in_the_middle_of_a_window(gpu: Pretence) -> None:
    seen = []
    with Background(gpu.server.client, workers=2) as traffic:
        for _ in range(4):
            client = gpu.sgtop()
            assert client.stdout is not None
            try:
                while not _tracing(client.stdout.readline()).get("records"):
                    pass
                assert gpu.do()["enabled"] == [1, 2, 10]
            finally:
                client.kill()
                client.communicate()
            gpu.wait_disabled(2)
            wait_without_agent(gpu.pid, 3)
            end = time.monotonic() + 3
            while "sgtop-flush" in (left := from_outside(gpu.pid)).threads:
                assert time.monotonic() < end, "the flush thread stays"
                time.sleep(0.02)
            seen.append((len(left.fds), [name for name in left.named_maps if "memfd:sgtop" in name]))
    assert traffic.failures == []
    assert len(seen[0][1]) == 2, "one helper library and one ring stay"
    assert seen[1:] == seen[:-1], f"something grows: {seen}"


def test_on_and_off_many_times_under_load(gpu: Pretence) -> None:
    with gpu.session("off") as session, Background(gpu.server.client, workers=2) as traffic:
        end = time.monotonic() + 40
        while session.snapshot().attach.state != "live":
            assert time.monotonic() < end
            time.sleep(0.05)
        for _ in range(20):
            switch(session, "on")
            until(session, lambda v: v.state == "tracing")
            switch(session, "off")
            until(session, lambda v: v.state == "off")
        gpu.wait_disabled(1)
    assert traffic.failures == []
    assert traffic.answered > 20
