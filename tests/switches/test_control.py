"""sgtop's side: which ranks are asked for what, in which order, and what is undone where one says no."""

from __future__ import annotations

import os
from typing import Any

import pytest
from sgtop_core.switches.control import NAMES, Switches
from sgtop_probes.http import HttpError

from tests.switches.rig import Server

GRAPH = "cuda-graph-decode"


def test_all_ranks_of_all_groups_change() -> None:
    server = Server(tp=2, dp=2)
    fds = len(os.listdir("/proc/self/fd"))
    switches = Switches(server)
    assert [g.labels for g in switches.groups()] == [("DP0 TP0", "DP0 TP1"), ("DP1 TP0", "DP1 TP1")]
    reply = switches.command("toggle", {"switch": GRAPH, "on": False, "for_s": 30})
    assert reply["ok"], reply
    assert set(reply["result"]) == {"DP0 TP0", "DP1 TP0"}
    server.turn()
    assert set(server.graphs().values()) == {False}
    assert switches.wait(GRAPH, False, 0.0)
    states = switches.command("toggle.list", {})["result"]
    assert {s["owner"] for g in states.values() for s in g["switches"] if s["name"] == GRAPH} == {
        f"pid {os.getpid()} (uid {os.getuid()}) on {os.uname().nodename}"
    }
    assert switches.command("toggle.keep", {"switch": GRAPH})["ok"]
    assert switches.command("toggle.back", {"switch": GRAPH})["ok"]
    server.turn()
    assert switches.wait(GRAPH, True, 0.0)
    server.end()
    assert len(os.listdir("/proc/self/fd")) == fds


def test_where_one_group_says_no_the_others_go_back() -> None:
    server = Server(tp=2, dp=2)
    server.refuse["DP1 TP1", "switch.join"] = "no"
    reply = Switches(server).command("toggle", {"switch": GRAPH, "on": False})
    assert reply == {"ok": False, "error": "DP1 TP1: no"}
    assert ("DP0 TP0", "switch.back") in server.asked
    server.turn()
    assert set(server.graphs().values()) == {True}
    server.end()


def test_a_switch_that_a_member_does_not_have_is_not_available() -> None:
    server = Server(tp=2)
    server.agents["TP1"].scheduler.tp_worker.model_runner.decode_cuda_graph_runner = None
    switches = Switches(server)
    reply = switches.command("toggle", {"switch": GRAPH, "on": False})
    assert reply["error"] == "cuda-graph-decode cannot be switched on TP0: no decode graph was captured"
    assert not any(op in ("switch.open", "switch.flip") for _, op in server.asked)


@pytest.mark.parametrize(
    ("op", "args", "why"),
    [
        ("toggle", {"switch": "warp", "on": False}, "there is no switch 'warp'"),
        ("toggle", {"switch": GRAPH, "on": "off"}, "a switch is on or off"),
        ("toggle", {"switch": GRAPH, "on": False, "for_s": -3}, "for_s is a number"),
        ("toggle.plan", {"switch": GRAPH}, "a switch is on or off"),
        ("toggle.keep", {"switch": GRAPH}, "is not flipped"),
        ("action", {"action": "warp"}, "there is no action 'warp'"),
        ("action", {"action": "pin", "cpus": []}, "cpus is a list"),
    ],
)
def test_refusals(op: str, args: dict[str, Any], why: str) -> None:
    server = Server()
    for agent in server.agents.values():
        agent.ops.register("action.pin", lambda call: (_ for _ in ()).throw(ValueError("cpus is a list")))
    reply = Switches(server).command(op, args)
    assert not reply["ok"]
    assert why in reply["error"]
    server.end()


def test_a_rank_without_an_agent_or_elsewhere() -> None:
    server = Server(tp=2)
    server.missing.add("TP1")
    assert "no agent in TP1" in Switches(server).command("toggle.list", {})["error"]
    del server._place["TP1"]
    server.missing.clear()
    assert "TP1 of the group of TP0 is not on this host" in Switches(server).command("toggle.list", {})["error"]
    server._place.clear()
    assert "no ranks yet" in Switches(server).command("toggle.list", {})["error"]


def test_read_only_refuses_what_changes() -> None:
    server = Server(readonly=True)
    switches = Switches(server)
    for op in ("toggle", "toggle.keep", "toggle.back", "action"):
        assert "--readonly" in switches.command(op, {"switch": GRAPH, "on": False})["error"]
    assert server.asked == []
    assert switches.command("toggle.plan", {"switch": GRAPH, "on": False})["ok"]
    assert {s["name"] for s in switches.command("toggle.list", {})["result"]["TP0"]["switches"]} == set(NAMES)


def test_actions_over_http() -> None:
    server = Server()
    switches = Switches(server)
    assert switches.command("action", {"action": "flush-cache"})["result"] == {"flush-cache": "Cache flushed."}
    assert switches.command("action", {"action": "freeze-gc"})["ok"]
    assert server.web is not None
    assert server.web.asked == ["/flush_cache", "/freeze_gc"]
    server.web.error = HttpError("/flush_cache answers 400 Bad Request", 400)
    assert "while nothing runs or waits" in switches.command("action", {"action": "flush-cache"})["error"]
    server.web = None
    assert "serves no HTTP" in switches.command("action", {"action": "flush-cache"})["error"]
