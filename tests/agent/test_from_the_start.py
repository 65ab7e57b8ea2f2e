"""The plugin and ``sgtop run``, each in a process of its own with a scheduler module in the place of SGLang's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.fake_sglang import wait_for
from tests.agent.meeting import Client

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "agent"
RUN_SITE = AGENT / "sgtop_agent" / "run_site"

SCHEDULER = """
import os, sys, time
def load_plugins():
    if os.environ.get("PLUGIN"):
        from sgtop_agent import plugin
        plugin.load(); plugin.load()
def run_scheduler_process(*args):
    load_plugins()
    from tests.agent import fake_sglang
    s = fake_sglang.make("ingest")
    fake_sglang.install(s.modes)
    print("scheduling", os.getpid(), flush=True)
    s.event_loop_overlap()
"""

MAIN = """
import sys
from sglang.srt.managers import scheduler
assert scheduler.run_scheduler_process.__name__ == "run_scheduler_process"
scheduler.load_plugins()          # newer SGLang loads plugins in the main process as well
print("main", "sgtop_agent" in sys.modules, flush=True)
scheduler.run_scheduler_process(1, 2)
"""


@pytest.fixture
def fake_site(tmp_path: Path) -> Path:
    managers = tmp_path / "site" / "sglang" / "srt" / "managers"
    managers.mkdir(parents=True)
    for folder in (managers, managers.parent, managers.parent.parent):
        (folder / "__init__.py").write_text("")
    (managers / "scheduler.py").write_text(SCHEDULER)
    return tmp_path / "site"


def start(tmp_path: Path, *pythonpath: Path, **env: str) -> subprocess.Popen[str]:
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        "PYTHONPATH": os.pathsep.join(map(str, pythonpath)),
        "SGTOP_SOCKET_DIR": str(tmp_path / "sockets"),
        **env,
    }
    return subprocess.Popen(
        [sys.executable, "-c", MAIN],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def connect(tmp_path: Path, pid: int) -> Client:
    """A greeted client; an agent that says "starting" is asked again."""
    folder = tmp_path / "sockets"
    wait_for((folder / f"sgtop-{pid}.token").exists)

    def greeted() -> Client | None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(folder / f"sgtop-{pid}.sock"))
        client = Client(sock.detach())
        client.hello((folder / f"sgtop-{pid}.token").read_text())
        first = client.wait(lambda frame: True)
        if first["k"] == "hello":
            return client
        client.close()
        assert first["why"].startswith("starting")
        return None

    return wait_for(greeted)  # type: ignore[no-any-return]


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith(word):
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        lines.append(line.strip())
    return lines


def stop(process: subprocess.Popen[str]) -> str:
    process.kill()
    _, err = process.communicate(timeout=20)
    return err


@pytest.mark.parametrize("way", ["plugin", "run"])
def test_the_agent_sleeps_serves_and_sleeps_again(tmp_path: Path, fake_site: Path, way: str) -> None:
    if way == "plugin":
        process = start(tmp_path, fake_site, ROOT, AGENT, PLUGIN="1")
    else:
        process = start(tmp_path, RUN_SITE, fake_site, ROOT)
    try:
        lines = lines_until(process, "scheduling")
        assert lines[0].split()[0] == "main"
        for _ in range(2):
            client = connect(tmp_path, process.pid)
            hello = client.kind("hello")
            assert hello["way"] == way
            assert "step" in hello["caps"]
            client.kind("stat")
            stack = client.call("where")["result"]["stack"]
            assert stack
            client.close()
        time.sleep(0.5)
        with open(f"/proc/{process.pid}/task/{process.pid}/stat") as f:
            assert f.read()
        client = connect(tmp_path, process.pid)
        assert client.kind("hello")["args"]["schedule_policy"] == "fcfs"
        client.close()
    finally:
        err = stop(process)
    assert "Traceback" not in err


def test_run_chains_to_the_sitecustomize_that_it_hides(tmp_path: Path, fake_site: Path) -> None:
    (fake_site / "sitecustomize.py").write_text("print('theirs ran', flush=True)\n")
    process = start(tmp_path, RUN_SITE, fake_site, ROOT)
    try:
        lines = lines_until(process, "scheduling")
        assert lines[0] == "theirs ran"
        connect(tmp_path, process.pid).close()
    finally:
        stop(process)


def test_run_leaves_other_processes_alone(tmp_path: Path, fake_site: Path) -> None:
    code = "import sys, json; print('sgtop_agent' in sys.modules, [p for p in sys.path if 'sgtop' in p])"
    env = {**os.environ, "PYTHONPATH": f"{RUN_SITE}", "SGTOP_SOCKET_DIR": str(tmp_path / "sockets")}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.startswith("False")
    assert not (tmp_path / "sockets").exists()


def test_a_folder_that_is_not_fit_costs_one_line_and_the_server_starts(tmp_path: Path, fake_site: Path) -> None:
    (tmp_path / "sockets").mkdir()
    (tmp_path / "sockets").chmod(0o777)
    process = start(tmp_path, fake_site, ROOT, AGENT, PLUGIN="1")
    try:
        lines_until(process, "scheduling")
        time.sleep(0.3)
    finally:
        err = stop(process)
    assert err.count("sgtop: no agent in this scheduler") == 1
    assert "Traceback" not in err


def test_a_wrong_token_does_not_get_in(tmp_path: Path, fake_site: Path) -> None:
    process = start(tmp_path, fake_site, ROOT, AGENT, PLUGIN="1")
    try:
        lines_until(process, "scheduling")
        folder = tmp_path / "sockets"
        wait_for((folder / f"sgtop-{process.pid}.token").exists)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(folder / f"sgtop-{process.pid}.sock"))
        client = Client(sock.detach())
        client.hello("x" * 32)
        assert client.kind("bye")["why"] == "wrong token"
        client.close()
    finally:
        stop(process)


def test_plugin_and_run_together_are_one_agent(tmp_path: Path, fake_site: Path) -> None:
    process = start(tmp_path, RUN_SITE, fake_site, ROOT, AGENT, PLUGIN="1")
    try:
        lines_until(process, "scheduling")
        client = connect(tmp_path, process.pid)
        client.kind("hello")
        client.close()
        assert len(list((tmp_path / "sockets").glob("*.sock"))) == 1
    finally:
        stop(process)
