"""Switches through the whole agent, in this process beside a fake scheduler: flips, owners, and leaving."""

from __future__ import annotations

import os
import socket
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from sgtop_agent import boot, wire

from tests.agent import fake_sglang as fake
from tests.agent.meeting import Client, agent_threads, open_fds, options, take

wait_for = fake.wait_for
GRAPH = "cuda-graph-decode"


@pytest.fixture
def scheduler() -> Iterator[Any]:
    """A scheduler that decodes with graphs for as long as the test lasts."""
    made = fake.make("ingest", graph_max_bs=8, step_work=lambda: time.sleep(0.002))
    with fake.running(made):
        made.submit(fake.Req(prompt=10, new_tokens=10**9))
        wait_for(lambda: made.forward_ct > 5)
        yield made
        wait_for(lambda: boot.RUNNING not in sys.modules and not agent_threads())
        assert "get_next_batch_to_run" not in vars(made)
        assert "can_run_graph" not in vars(made.tp_worker.model_runner.decode_cuda_graph_runner)


def attach(nonce: str = "beef") -> Client:
    boot.start(options(nonce))
    client = take(nonce)
    client.hello()
    client.kind("hello")
    return client


def off(client: Client, **args: Any) -> None:
    opened = client.call("switch.open")
    assert opened["ok"], opened
    assert client.call("switch.flip", switch=GRAPH, on=False, who="the test", **args)["ok"]


def state(client: Client) -> dict[str, Any]:
    result = client.call("switch.list")["result"]
    return {**result, "mine": next(s for s in result["switches"] if s["name"] == GRAPH)}


def graphs(client: Client) -> dict[int, int]:
    """forward_ct → graph flag of the steps that have arrived."""
    out = {}
    for frame in client.frames:
        if frame["k"] == "ev" and frame["e"] == "step":
            ct, graph = (array("q", bytes(frame["c"][c])) for c in ("ct", "graph"))
            out.update(zip(ct, graph, strict=True))
    return out


def test_every_step_is_on_the_side_that_the_word_says(scheduler: Any) -> None:
    client = attach()
    off(client)
    wait_for(lambda: state(client)["mine"]["state"] == "off")
    assert client.call("switch.back", switch=GRAPH)["result"]["back"] == [GRAPH]
    wait_for(lambda: state(client)["mine"]["state"] == "on")
    (n_off, to_off, _), (n_on, to_on, _) = state(client)["log"]
    assert (to_off, to_on) == (1, 0)
    client.wait(lambda f: f["k"] == "stat" and f["ct"] > n_on + 50)
    client.pump(0.3)
    seen = graphs(client)
    assert min(seen) <= n_off < n_on < max(seen)
    assert {ct: graph for ct, graph in seen.items() if graph != int(not n_off < ct <= n_on)} == {}
    client.close()


def test_frames_and_notes_reach_every_client(scheduler: Any) -> None:
    one, two = attach("aaaa"), attach("bbbb")
    off(one, for_s=30)
    for client in (one, two):
        frame = client.wait(lambda f: f["k"] == "switch" and f["switches"][0]["state"] == "off")
        assert set(wire.SWITCH) <= set(frame)
        assert frame["switches"][0]["owner"] == "the test"
        assert 25 < frame["switches"][0]["left_s"] <= 30
        client.wait(lambda f: f["k"] == "note" and "cuda-graph-decode is off on 1 rank(s)" in f["text"])
    one.close()
    two.wait(lambda f: f["k"] == "note" and "the test has gone" in f["text"])
    wait_for(lambda: state(two)["mine"]["state"] == "on")
    two.close()


def test_the_timer_sends_it_back_and_keep_stops_the_timer(scheduler: Any) -> None:
    client = attach()
    off(client, for_s=0.3)
    client.wait(lambda f: f["k"] == "note" and "its time is over" in f["text"])
    wait_for(lambda: state(client)["mine"]["state"] == "on")
    off(client, for_s=0.5)
    assert client.call("switch.keep", switch=GRAPH)["ok"]
    client.pump(0.8)
    assert state(client)["mine"]["state"] == "off"
    client.close()


def test_a_killed_client_leaves_no_trace_of_a_flip(scheduler: Any) -> None:
    runner = scheduler.tp_worker.model_runner
    fds = open_fds()
    for _ in range(3):
        client = attach()
        off(client)
        wait_for(lambda c=client: state(c)["mine"]["state"] == "off")
        assert not runner.decode_cuda_graph_runner.can_run_graph(fake.ForwardBatch(scheduler.modes.DECODE, 1, None))
        client.close()
        wait_for(lambda: boot.RUNNING not in sys.modules and not agent_threads())
        assert runner.decode_cuda_graph_runner.can_run_graph(fake.ForwardBatch(scheduler.modes.DECODE, 1, None))
    assert open_fds() == fds
    with open("/proc/self/maps") as maps:
        assert "sgtop-switches" not in maps.read()


def test_the_agent_stays_until_the_state_is_back(scheduler: Any) -> None:
    client = attach()
    off(client)
    wait_for(lambda: state(client)["mine"]["state"] == "off")
    scheduler._engine_paused = True  # no turn reaches a boundary
    before = scheduler.forward_ct
    client.close()
    wait_for(lambda: scheduler.forward_ct == before)
    turns = scheduler.turns
    wait_for(lambda: scheduler.turns > turns + 500)
    assert agent_threads()
    scheduler._engine_paused = False
    wait_for(lambda: not agent_threads())


def test_a_client_that_comes_while_the_agent_waits_is_served(scheduler: Any) -> None:
    client = attach("aaaa")
    off(client)
    wait_for(lambda: state(client)["mine"]["state"] == "off")
    scheduler._engine_paused = True
    client.close()
    second = attach("bbbb")
    assert state(second)["mine"]["wanted"] == "on"
    scheduler._engine_paused = False
    wait_for(lambda: state(second)["mine"]["state"] == "on")
    off(second)
    wait_for(lambda: state(second)["mine"]["state"] == "off")
    second.close()


def test_descriptors_that_nobody_asked_for_are_closed(scheduler: Any) -> None:
    client = attach()
    fds = open_fds()
    fd = os.memfd_create("x")
    socket.send_fds(client.sock, [wire.pack({"k": "ping"})], [fd, fd])
    wait_for(lambda: open_fds() == fds + 1 + 2)
    os.close(fd)
    client.close()
    wait_for(lambda: not agent_threads())
    assert open_fds() < fds


def test_unknown_operations_and_actions(scheduler: Any) -> None:
    client = attach()
    assert "there is no switch" in client.call("switch.plan", switch="warp", on=False)["error"]
    assert "cpus is a list" in client.call("action.pin", cpus="0")["error"]
    assert "nice is a number" in client.call("action.priority", nice=40)["error"]
    cpus = sorted(os.sched_getaffinity(0))
    pinned = client.call("action.pin", cpus=cpus[:1], who="the test")
    assert pinned["result"] == {"cpus": cpus[:1], "before": cpus}
    assert os.sched_getaffinity(0) == {cpus[0]}
    other = attach("cccc")
    assert "was changed by the test" in other.call("action.pin", cpus=cpus)["error"]
    client.close()
    wait_for(lambda: os.sched_getaffinity(0) == set(cpus))
    other.close()
