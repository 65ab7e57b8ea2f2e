"""Switches on real servers: every version and group size, traffic, clients that die, ranks that stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.command import COMMAND, REPO, sgtop
from tests.server.servers import Config, Pool
from tests.server.switching import RADIX, Switching, cached_while_off, leaks, same_steps, windows
from tests.server.traces import wait_without_agent
from tests.server.traffic import Background, ids, serial
from tools.sglang_cpu.server import CpuServer

CONFIGS = [Config(version, tp=tp).logging_steps() for version in ("0.5.16", "0.5.20", "0.5.23") for tp in (1, 2)]
FLIPS = 100
BACK_S = 3.0
"""Three times what is promised: this machine may be busy. bench/switches.py measures."""


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda c: f"{c.version}-tp{c.tp}")
def config(request: pytest.FixtureRequest) -> Config:
    """All tests of one server follow each other."""
    found: Config = request.param
    return found


@pytest.fixture
def any_server(servers: Pool, config: Config) -> Iterator[CpuServer]:
    """A server of every version at TP 1 and TP 2; afterwards its idle checks have found nothing."""
    server = servers.get(config)
    yield server
    time.sleep(1.2)  # an idle server checks its pools once a second
    assert leaks(server) == []


def test_forced_misses_and_warm_again(any_server: CpuServer, config: Config) -> None:
    client = any_server.client
    client.flush_cache()
    prompts = [ids(120, 40 + i) for i in range(4)]
    expected = serial(client, prompts)
    with Switching(any_server) as switching, Background(client, workers=1) as traffic:
        warm = [client.generate(p, 24) for p in prompts]
        switching.off()
        missed = [client.generate(p, 24) for p in prompts]
        switching.on()
        again = [client.generate(p, 24) for p in prompts]
        off = windows(same_steps(switching.changes(), config.tp))
    assert [a.cached_tokens for a in warm] == [119] * 4
    assert [a.cached_tokens for a in missed] == [0] * 4
    assert [a.cached_tokens for a in again] == [119] * 4
    assert set(cached_while_off(any_server, off)) == {0}
    assert traffic.failures == []
    # Batches that other requests share compute in another order; answers are compared where requests are serial.
    assert serial(client, prompts) == expected


def test_answers_of_serial_requests_are_the_same(any_server: CpuServer) -> None:
    client = any_server.client
    prompts = [ids(90, 60 + i) for i in range(4)]
    cold = serial(client, prompts)
    control = serial(client, prompts)
    with Switching(any_server) as switching:
        switching.off(wait=False)
        client.generate(ids(20, 1), 12)  # the steps after which it takes effect
        switching.until(lambda: switching.state()["state"] == "off")
        off = serial(client, prompts)
        switching.on()
        on = serial(client, prompts)
    assert off == cold == control
    assert on == control


@pytest.mark.timeout(900)
def test_a_hundred_flips_under_traffic(any_server: CpuServer, config: Config) -> None:
    with Background(any_server.client) as traffic, Switching(any_server) as switching:
        for _ in range(FLIPS // 2):
            switching.off()
            switching.on()
        changes = same_steps(switching.changes(), config.tp)
    assert len(changes) == FLIPS
    assert set(cached_while_off(any_server, windows(changes))) <= {0}
    assert traffic.failures == []
    assert traffic.answered > 10


@pytest.mark.parametrize("busy", [True, False], ids=["traffic", "idle"])
def test_client_is_killed_with_a_switch_flipped(any_server: CpuServer, config: Config, busy: bool) -> None:
    with Switching(any_server) as watching:
        with Background(any_server.client) as traffic:
            child = toggling(any_server)
            if busy:
                killed = kill(child)
                watching.until(lambda: watching.state()["state"] == "on")
        if not busy:
            time.sleep(0.5)
            killed = kill(child)
            watching.until(lambda: watching.state()["state"] == "on")
        changes = same_steps(watching.changes(), config.tp)
        took = [(times[-1] - killed) / 1e9 for times in watching.times().values()]
    assert [state for _, state in changes] == [4, 0]
    assert max(took) < BACK_S
    assert traffic.failures == []
    for pid in any_server.schedulers():
        wait_without_agent(pid, 5)


def toggling(server: CpuServer) -> subprocess.Popen[str]:
    """``sgtop toggle radix-cache off`` in the background, once it is off."""
    command = [*COMMAND, "toggle", RADIX, "off", "--yes", "--attach", f":{server.port}", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO)
    assert child.stdout is not None
    for line in child.stdout:
        if json.loads(line)["event"] == "off":
            return child
    raise AssertionError(f"exit status {child.wait()}")


def kill(child: subprocess.Popen[str]) -> int:
    """SIGKILL; when, in CLOCK_MONOTONIC ns."""
    child.kill()
    now = time.monotonic_ns()
    child.communicate()
    return now


def test_a_rank_is_stopped_in_a_flip(any_server: CpuServer, config: Config) -> None:
    pids = any_server.schedulers()
    with Background(any_server.client) as traffic, Switching(any_server) as switching:
        for pid in pids:
            for flip in (switching.off, switching.on):
                flip(wait=False)
                os.kill(pid, signal.SIGSTOP)
                try:
                    time.sleep(1)
                finally:
                    os.kill(pid, signal.SIGCONT)
                want = "off" if flip == switching.off else "on"
                switching.until(lambda want=want: switching.state()["state"] == want)  # type: ignore[misc]
        changes = same_steps(switching.changes(), config.tp)
    assert [state for _, state in changes] == [4, 0] * len(pids)
    assert traffic.failures == []


DIES = """
import os, signal, sys, time
from sgtop_core.session import Session
asked = [0]
ask = Session.ask
def counted(self, *args, **kwargs):
    asked[0] += 1
    if asked[0] > int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return ask(self, *args, **kwargs)
Session.ask = counted
session = Session(f":{sys.argv[1]}")
session.start()
while not (ranks := session.snapshot().ranks) or any(r.state != "live" for r in ranks):
    time.sleep(0.02)
for on in (False, True):
    assert session.command(None, "toggle", {"switch": "radix-cache", "on": on})["ok"]
    session.switches.wait("radix-cache", on, 20)
"""


@pytest.mark.timeout(900)
def test_client_is_killed_between_any_two_of_its_messages(any_server: CpuServer, config: Config) -> None:
    messages = [1, 2, 3, 4, 5, 6, 7, 8] if config.tp == 2 else [1, 2, 3, 4, 5]
    with Background(any_server.client) as traffic, Switching(any_server) as watching:
        for most in messages:
            done = subprocess.run(
                [sys.executable, "-c", DIES, str(any_server.port), str(most)], cwd=REPO, capture_output=True, text=True
            )
            assert done.returncode == -signal.SIGKILL, done.stderr
            watching.until(lambda: watching.state()["state"] == "on")
        changes = same_steps(watching.changes(), config.tp) if watching.changes() else []
    assert traffic.failures == []
    assert [state for _, state in changes] == [4, 0] * (len(changes) // 2)
    for pid in any_server.schedulers():
        wait_without_agent(pid, 5)


def test_a_flip_while_idle_is_pending(any_server: CpuServer, config: Config) -> None:
    with Switching(any_server) as switching:
        switching.off(1.5, wait=False)
        time.sleep(0.3)
        assert switching.state()["state"] == "pending"
        switching.until(lambda: switching.state()["state"] == "on")
        assert switching.changes() == {f"TP{i}": [] for i in range(config.tp)}
        switching.off(wait=False)
        time.sleep(0.3)
        assert switching.state()["state"] == "pending"
        any_server.client.generate(ids(20, 9), 16)
        switching.until(lambda: switching.state()["state"] == "off")
        switching.on()
        assert [state for _, state in same_steps(switching.changes(), config.tp)] == [4, 0]


def test_sessions(any_server: CpuServer) -> None:
    client = any_server.client
    with Background(client, workers=1), Switching(any_server) as switching:
        opened = json.loads(client.call("POST", "/open_session", {"capacity_of_str_len": 1000}))
        refused = switching.session.command(None, "toggle", {"switch": RADIX, "on": False})
        assert not refused["ok"]
        assert "sessions are open (1)" in refused["error"]
        client.call("POST", "/close_session", {"session_id": opened})
        switching.until(lambda: switching.state()["available"])
        switching.off()
        opened = json.loads(client.call("POST", "/open_session", {"capacity_of_str_len": 1000}))
        try:
            switching.until(lambda: switching.state()["state"] == "on")
            switching.until(lambda: any("a session was opened" in x for x in switching.session.snapshot().log))
        finally:
            client.call("POST", "/close_session", {"session_id": opened})


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.5.16", "the cache class StreamingSession is not tested"), ("0.5.23", "sessions are open (1)")],
)
def test_streaming_sessions(servers: Pool, version: str, why: str) -> None:
    server = servers.get(Config(version, flags=("--enable-streaming-session",)))
    opened = json.loads(server.client.call("POST", "/open_session", {"capacity_of_str_len": 1000, "streaming": True}))
    try:
        for seed in range(2):
            body = {
                "input_ids": ids(20, seed),
                "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
                "session_params": {"id": opened},
            }
            server.client.call("POST", "/generate", body)
        done = sgtop("toggle", RADIX, "off", "--yes", "--attach", f":{server.port}")
        assert done.returncode == 8, done
        assert why in done.stderr
    finally:
        server.client.call("POST", "/close_session", {"session_id": opened})
    assert leaks(server) == []


def test_server_is_killed_with_a_switch_flipped(servers: Pool) -> None:
    server = servers.get(Config(flags=("--max-running-requests", "30")))
    with Background(server.client, workers=1):
        child = toggling(server)
        server.kill()
    child.communicate(timeout=30)
    assert child.returncode == 7


def test_two_clients_see_one_truth(any_server: CpuServer) -> None:
    with Background(any_server.client, workers=1), Switching(any_server) as one, Switching(any_server) as two:
        one.off()
        two.until(lambda: two.state()["state"] == "off")
        assert two.state()["owner"] == one.state()["owner"] != ""
        two.until(lambda: any(RADIX in line for line in two.session.snapshot().log))
        again = two.session.command(None, "toggle", {"switch": RADIX, "on": False})
        assert not again["ok"]
        assert "off already" in again["error"]
        two.on()
        one.until(lambda: one.state()["state"] == "on")


def test_audit_in_the_servers_log(any_server: CpuServer) -> None:
    with Background(any_server.client, workers=1), Switching(any_server) as switching:
        switching.off()
        switching.on()
    lines = [x.split("sgtop: ", 1)[1] for x in any_server.log.read_text().splitlines() if "sgtop: radix" in x]
    assert f"off for 60 s, asked by pid {os.getpid()} (uid {os.getuid()}) on " in lines[-4]
    assert "is off on" in lines[-3]
    assert "since step" in lines[-3]
    assert "goes back on: asked by" in lines[-2]
    assert "is on on" in lines[-1]


# --- the command line, on one server ------------------------------------------------------------------------------


def test_toggle_from_the_command_line(server: CpuServer) -> None:
    target = f":{server.port}"
    listed = json.loads(sgtop("toggle", "--list", "--json", "--attach", target).stdout)
    switches = {s["name"]: s for s in listed["groups"]["TP0"]["switches"]}
    assert switches[RADIX]["available"]
    assert switches["cuda-graph-decode"]["reason"] == "no decode graph was captured"
    with Background(server.client):
        done = sgtop("toggle", RADIX, "off", "--yes", "--for", "1s", "--json", "--attach", target)
        assert done.returncode == 0, done
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert [e["event"] for e in events] == ["plan", "off", "on"]
        assert "KV tokens" in events[0]["text"]
        child = toggling(server)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
        assert child.returncode == 0
        assert json.loads(out.splitlines()[-1])["event"] == "on"


def test_ab_leaves_what_another_sgtop_turned_off(server: CpuServer) -> None:
    target = f":{server.port}"
    with Background(server.client):
        child = toggling(server)
        done = sgtop("ab", "--switch", RADIX, "--rounds", "3", "--each", "1s", "--attach", target)
        listed = json.loads(sgtop("toggle", "--list", "--json", "--attach", target).stdout)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=20)
    assert done.returncode == 8, done
    assert f"off already, by pid {child.pid} " in done.stderr
    assert "nothing was changed" in done.stderr
    assert {s["name"]: s["state"] for s in listed["groups"]["TP0"]["switches"]}[RADIX] == "off"
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("signals", "every"),
    [
        ((signal.SIGSTOP, signal.SIGCONT, signal.SIGINT), 7.0),
        ((signal.SIGINT, signal.SIGTERM), 0.0),
        ((signal.SIGINT,) * 6, 0.1),
    ],
)
def test_signals_end_a_toggle_in_one_way(server: CpuServer, signals: tuple[int, ...], every: float) -> None:
    with Background(server.client):
        child = toggling(server)
        for number in signals:
            if child.poll() is None:
                child.send_signal(number)
            time.sleep(every)
        out, said = child.communicate(timeout=30)
    assert child.returncode == 0, said
    assert json.loads(out.splitlines()[-1])["event"] == "on"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("toggle", RADIX, "off", "--readonly"), 8, "--readonly"),
        (("toggle", "cuda-graph-decode", "off", "--yes"), 8, "no decode graph was captured"),
        (("toggle", "warp", "off"), 2, "there is no switch 'warp'"),
        (("toggle", RADIX, "maybe"), 2, "'maybe' is not on or off"),
        (("toggle", RADIX), 2, "on or off?"),
        (("ab", "--switch", RADIX, "--readonly"), 8, "--readonly"),
        (("ab", "--switch", "warp"), 2, "there is no switch 'warp'"),
        (("ab", "--switch", "cuda-graph-prefill", "--rounds", "3", "--each", "1s"), 8, "no prefill graph was captured"),
        (("action", "pin", "4000"), 8, "cannot pin"),
        (("action", "pin", "0", "--rank", "TP9"), 2, "there is TP0"),
        (("action", "priority", "99"), 2, "from -20"),
        (("action", "flush-cache", "--readonly"), 8, "--readonly"),
    ],
)
def test_refusals(server: CpuServer, arguments: tuple[str, ...], code: int, said: str) -> None:
    with Background(server.client, workers=1):
        done = sgtop(*arguments, "--attach", f":{server.port}")
    assert done.returncode == code, done
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sgtop("toggle", "--list", "--json", "--attach", f":{server.port}").returncode == 0


def test_an_idle_server_is_not_compared(server: CpuServer) -> None:
    done = sgtop("ab", "--switch", RADIX, "--rounds", "3", "--each", "1s", "--attach", f":{server.port}")
    assert done.returncode == 6, done
    assert "makes no steps" in done.stderr


def test_a_flip_on_an_idle_server_is_not_made_and_why(server: CpuServer) -> None:
    done = sgtop("toggle", RADIX, "off", "--yes", "--for", "2s", "--attach", f":{server.port}")
    assert done.returncode == 6, done
    assert "the server made no steps in that time" in done.stderr


def test_a_pin_says_which_cpus_it_became(server: CpuServer) -> None:
    done = sgtop("action", "pin", "0-4000", "--for", "1s", "--attach", f":{server.port}")
    assert done.returncode == 0, done
    assert "-4000: the server's process may not use them" in done.stdout


def test_ab_finds_what_forced_misses_do(server: CpuServer) -> None:
    stop = threading.Event()
    system = ids(200, 3)

    def load(worker: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            server.client.generate(system + ids(8, worker * 1000 + n), 8)

    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(load, i) for i in range(2)]
        try:
            done = sgtop(
                "ab", "--switch", RADIX, "--rounds", "3", "--each", "1s", "--json", "--attach", f":{server.port}"
            )
        finally:
            stop.set()
        for each in work:
            each.result()
    assert done.returncode == 0, done
    found = {m["measure"]: m for m in json.loads(done.stdout)["measures"]}
    assert found["hit_ratio"]["verdict"] == "difference"
    assert found["hit_ratio"]["on"] > 0.5
    assert found["hit_ratio"]["off"] == 0


def test_actions(server: CpuServer) -> None:
    (pid,) = server.schedulers()
    before = {tid: os.sched_getaffinity(int(tid)) for tid in os.listdir(f"/proc/{pid}/task")}
    nices = {os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in before}
    with Switching(server) as switching:
        switching.ask("action", action="pin", cpus=[0])
        assert {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir(f"/proc/{pid}/task")} == {frozenset({0})}
        switching.ask("action", action="priority", nice=3)
        assert {os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir(f"/proc/{pid}/task")} == {3}
        prompt = ids(60, 77)
        server.client.generate(prompt, 4)
        switching.ask("action", action="flush-cache")
        assert server.client.generate(prompt, 4).cached_tokens == 0
        switching.ask("action", action="freeze-gc")
    wait_without_agent(pid, 5)
    after = {tid: os.sched_getaffinity(int(tid)) for tid in os.listdir(f"/proc/{pid}/task") if tid in before}
    assert after == {tid: cpus for tid, cpus in before.items() if tid in after}
    assert {os.getpriority(os.PRIO_PROCESS, int(t)) for t in after} == nices


def test_a_server_without_a_radix_cache(servers: Pool) -> None:
    server = servers.get(Config(flags=("--disable-radix-cache",)))
    done = sgtop("toggle", RADIX, "off", "--yes", "--attach", f":{server.port}")
    assert done.returncode == 8, done
    assert "the radix cache is disabled" in done.stderr
    server.kill()
    done = sgtop("toggle", RADIX, "off", "--yes", "--attach", f":{server.port}")
    assert done.returncode == 3, done
    assert "Traceback" not in done.stderr
