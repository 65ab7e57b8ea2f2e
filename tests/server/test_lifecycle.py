"""Either side goes at a bad moment: the server never waits, nothing stays behind, and sgtop says what it sees."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from sgtop_probes.resolve import resolve

from tests.server.command import COMMAND, Watching, sgtop
from tests.server.listener import Listener
from tests.server.servers import Config, Pool
from tests.server.traces import agent_threads, from_outside, wait_without_agent
from tests.server.traffic import Background, ids
from tools.sglang_cpu.server import CpuServer


def test_client_is_killed(server: CpuServer) -> None:
    (pid,) = server.schedulers()
    with Background(server.client) as traffic:
        for _ in range(3):
            with Watching(f":{server.port}") as watching:
                watching.wait(lambda s: s["ranks"][0]["modes"])
                assert agent_threads(pid)
                watching.kill(signal.SIGKILL)
                wait_without_agent(pid, 15)
        before = from_outside(pid)
        with Watching(f":{server.port}") as watching:
            watching.live()
            watching.kill(signal.SIGKILL)
            wait_without_agent(pid, 15)
        after = from_outside(pid)
    assert traffic.failures == []
    assert after.grown_since(before) == []


def test_client_is_stopped_for_half_a_minute(server: CpuServer) -> None:
    (pid,) = server.schedulers()
    with Background(server.client) as traffic, Watching(f":{server.port}") as watching:
        watching.live()
        watching.kill(signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            wait_without_agent(pid, 15)
            answered = traffic.answered
            while time.monotonic() < stopped + 30:
                time.sleep(0.5)
            assert traffic.answered > answered + 10
            assert agent_threads(pid) == []
        finally:
            watching.kill(signal.SIGCONT)
        watching.wait(lambda s: s["state"] != "live")
        watching.live()
        step = watching.wait(lambda s: s["ranks"][0]["last_step"])["ranks"][0]["last_step"]
        watching.wait(lambda s: (s["ranks"][0]["last_step"] or 0) > step)
    assert traffic.failures == []


def test_server_is_killed_and_comes_back(servers: Pool) -> None:
    config = Config(flags=("--max-running-requests", "32"))
    server = servers.get(config)
    with Watching(f":{server.port}") as watching:
        first = watching.live()
        looking = subprocess.Popen(
            [*COMMAND, "--attach", f":{server.port}", "--once", "--for", "20s"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for seed in range(30):
            server.client.generate(ids(20, seed), 40)
        time.sleep(1)
        server.kill()
        seen_until_then, talk = looking.communicate(timeout=30)
        assert looking.returncode == 7
        assert "went away; this is what was seen until then" in talk
        assert "Traceback" not in talk
        assert "DECODE" in seen_until_then
        gone = watching.wait(lambda s: s["state"] != "live")
        assert gone["message"]
        watching.wait(lambda s: s["state"] == "waiting")
        again = servers.start(config, port=server.port)
        again.wait_healthy()
        second = watching.live(60)
        assert second["server"]["pid"] == again.pid != first["server"]["pid"]
        assert [r["pid"] for r in second["ranks"]] == again.schedulers()
        again.client.generate(ids(20, 1), 30)
        # The new server counts from one again, and so does everything that is shown of it.
        seen = watching.wait(lambda s: "DECODE" in s["ranks"][0]["modes"])
        assert seen["lost"] == {} or not any(seen["lost"].values())
        assert watching.stop() == 0


def test_attach_while_the_server_still_loads(servers: Pool) -> None:
    server = servers.start(Config(flags=("--max-running-requests", "31")))
    with Watching(f":{server.port}") as watching:
        early = watching.wait(lambda s: s["state"] == "starting")
        assert early["message"]
        server.wait_healthy()
        watching.live(60)
        server.client.generate(ids(20, 1), 30)
        assert watching.wait(lambda s: "DECODE" in s["ranks"][0]["modes"])
        assert watching.stop() == 0


def test_stopped_scheduler_is_named_and_nothing_fires_late(server: CpuServer) -> None:
    (pid,) = server.schedulers()
    server.client.generate(ids(20, 2), 10)
    before = from_outside(pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        done = sgtop("--attach", f":{server.port}", "--once")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 6, done
    assert "stopped" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    # Whatever was queued while it stood still must do nothing now.
    for seed in range(4):
        server.client.generate(ids(20, 10 + seed), 30)
        time.sleep(1)
        assert agent_threads(pid) == []
    assert from_outside(pid).grown_since(before) == []
    with Listener(resolve(f":{server.port}").ranks[0]) as listener:
        server.client.generate(ids(20, 3), 10)
        assert listener.wait(lambda each: each.rows("step"))


def test_scheduler_that_stops_while_it_is_watched(server: CpuServer) -> None:
    (pid,) = server.schedulers()
    with Watching(f":{server.port}") as watching:
        watching.live()
        os.kill(pid, signal.SIGSTOP)
        try:
            seen = watching.wait(lambda s: s["ranks"][0]["state"] != "live")
            assert "stopped" in seen["ranks"][0]["message"]
        finally:
            os.kill(pid, signal.SIGCONT)
        watching.live()
        server.client.generate(ids(20, 4), 10)
        assert watching.stop() == 0
    wait_without_agent(pid, 10)
