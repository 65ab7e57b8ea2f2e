"""The command line on a real server: what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import socket

import jsonschema
import pytest

from tests.server.command import COMMAND, sgtop
from tests.server.servers import ports
from tests.server.traces import wait_without_agent
from tests.server.traffic import Background
from tools.sglang_cpu.server import CpuServer, free_port


def test_once_as_json_is_what_the_schema_says(server: CpuServer) -> None:
    schema = json.loads(sgtop("schema").stdout)
    with Background(server.client, workers=4) as traffic:
        done = sgtop("--attach", f":{server.port}", "--once", "--json", "--for", "3s")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    jsonschema.validate(seen, schema)
    assert traffic.failures == []
    assert (seen["server"]["port"], seen["server"]["sglang_version"]) == (server.port, "0.5.20")
    assert (seen["attach"], seen["state"]) == ("pending-call", "live")
    (rank,) = seen["ranks"]
    assert rank["pid"] == server.schedulers()[0]
    assert {"EXTEND", "DECODE"} <= set(rank["modes"])
    decode = rank["modes"]["DECODE"]
    assert decode["steps"] > 10
    assert decode["batch"]["max"] <= 4
    assert decode["step_ms"]["p50"] > 0
    assert decode["gpu_ms"] is None  # there is no GPU here: not known is null, never 0
    assert rank["gaps"]["step"]["label"] == "host"
    # Exclusive stages of one thread: together the time that was seen, and no more.
    assert sum(rank["stages_s"].values()) == pytest.approx(seen["covered_s"], rel=0.1)
    assert seen["lost"] == {} or not any(seen["lost"].values())
    wait_without_agent(rank["pid"], 5)


def test_once_as_text(server: CpuServer) -> None:
    with Background(server.client):
        done = sgtop("--attach", f"pid:{server.pid}", "--once")
    assert done.returncode == 0, done.stderr
    for word in ("SGLang 0.5.20", "DECODE", "TP0", "pending-call"):
        assert word in done.stdout


def test_without_a_target_the_only_server_is_taken_and_list_names_it(server: CpuServer) -> None:
    listed = sgtop("list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert server.port in [each["port"] for each in json.loads(listed.stdout)]
    text = sgtop("list")
    assert f":{server.port}" in text.stdout


def test_nothing_listens_there(server: CpuServer) -> None:
    port = free_port(*ports())
    done = sgtop("--attach", f":{port}", "--once")
    assert (done.returncode, done.stdout) == (3, "")
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_something_else_listens_there() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = sgtop("--attach", f":{port}", "--once")
    assert (done.returncode, done.stdout) == (4, "")
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["nonsense", ":0", ":99999", "pid:abc", "example.invalid:30000"])
def test_not_a_target(target: str) -> None:
    done = sgtop("--attach", target, "--once")
    assert done.returncode in (2, 3)
    assert done.stdout == ""
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take a capability away from a process")
def test_without_the_right_to_trace_it_says_so_and_shows_what_it_can(server: CpuServer) -> None:
    import subprocess

    done = subprocess.run(
        ["setpriv", "--bounding-set", "-sys_ptrace", *COMMAND, "--attach", f":{server.port}", "--once"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "ptrace" in (done.stdout + done.stderr).lower()
    assert "agentless" in done.stdout
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done
    for what in (("toggle", "radix-cache", "off", "--yes"), ("ab", "--switch", "radix-cache")):
        change = subprocess.run(
            ["setpriv", "--bounding-set", "-sys_ptrace", *COMMAND, *what, "--attach", f":{server.port}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert change.returncode == 5, change
        assert "ptrace" in change.stderr.lower()
    flush = subprocess.run(
        [
            "setpriv",
            "--bounding-set",
            "-sys_ptrace",
            *COMMAND,
            "action",
            "flush-cache",
            "-y",
            "--attach",
            f":{server.port}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert flush.returncode == 0, "it goes over HTTP"
