"""The other ways in, once each: the plugin, ``sgtop run``, and without an agent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from sgtop_core.session import Session, SessionOptions
from sgtop_probes.resolve import resolve

from tests.server.command import COMMAND, REPO, Watching
from tests.server.listener import Listener
from tests.server.servers import WITNESS, Config, Pool
from tests.server.traces import from_inside, from_outside
from tests.server.traffic import Background, at_once, ids
from tools.sglang_cpu.server import CpuServer


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution sgtop-agent, installed by pip into a folder for a server's PYTHONPATH."""
    folder = tmp_path_factory.mktemp("agent")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*install, "--target", str(folder), str(REPO / "agent")], check=True, timeout=240)
    return folder


def test_plugin(servers: Pool, installed: Path) -> None:
    path = f"{installed}:{WITNESS}"
    config = Config(env=(("PYTHONPATH", path), ("SGTOP_WITNESS", str(servers.folder))))
    server = servers.get(config)
    (pid,) = server.schedulers()
    (rank,) = resolve(f":{server.port}").ranks
    at_once(server.client, [ids(30, i) for i in range(4)])
    asleep = from_inside(pid, servers.folder)
    for _ in range(25):
        with Listener(rank, ways=("plugin",)) as listener:
            assert listener.connection.way == listener.hello["way"] == "plugin"
            server.client.generate(ids(20, 5), 10)
            listener.wait(lambda each: each.rows("step"))
    # The last client has gone: it sleeps again, with its socket open and nothing hooked.
    end = time.monotonic() + 10
    while (grown := from_inside(pid, servers.folder).grown_since(asleep)) and time.monotonic() < end:
        time.sleep(0.2)
    assert [line for line in grown if not line.startswith(("modules", "objects", "named_maps"))] == []
    with Watching(f":{server.port}") as watching:
        assert watching.live()["attach"] == "plugin"
        assert watching.stop() == 0


def test_run(servers: Pool) -> None:
    server = servers.get(Config(prefix=(*COMMAND, "run", "--")))
    (rank,) = resolve(f":{server.port}").ranks
    with Listener(rank, ways=("plugin",)) as listener:
        assert listener.hello["way"] == "run"
        server.client.generate(ids(20, 5), 10)
        assert listener.wait(lambda each: each.rows("step"))
    with Watching(f":{server.port}") as watching:
        assert watching.live()["attach"] == "run"


def test_agentless(server: CpuServer) -> None:
    (pid,) = server.schedulers()
    before = from_outside(pid)
    session = Session(f":{server.port}", SessionOptions(ways=()))
    session.start()
    try:
        with Background(server.client, workers=4, tokens=100):
            end = time.monotonic() + 20
            while session.snapshot().ranks[0].queue.running is None and time.monotonic() < end:
                time.sleep(0.1)
            seen = session.snapshot()
        assert seen.attach.way == "agentless"
        assert seen.server.sglang_version == "0.5.20"
        (rank,) = seen.ranks
        assert rank.pid == pid
        assert rank.queue.running is not None
        assert rank.kv_usage is not None
        assert seen.attach.message  # what would fill the missing panels
    finally:
        session.stop()
    assert from_outside(pid).grown_since(before) == []
