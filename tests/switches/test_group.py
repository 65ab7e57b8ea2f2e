"""A group of ranks with the agent's real switches, in every order that a client, its death and slow ranks can bring.

Hypothesis chooses what happens next: a rank takes a part of its turn, an agent's thread looks, the client sends its
next message or dies, an agent learns of that, time passes. A rank that is not chosen is a stopped one.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sgtop_agent.switches import control

from tests.switches.rig import Agent, Peer, Scheduler

SWITCHES = ("cuda-graph-decode", "cuda-graph-prefill")
SECOND = 1_000_000_000


class Group(RuleBasedStateMachine):
    """Three ranks and up to two clients, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.now = SECOND
        self.before = control.mono
        control.mono = lambda: self.now  # type: ignore[assignment]

    @initialize(size=st.integers(1, 3))
    def start(self, size: int) -> None:
        self.size = size
        self.schedulers = [Scheduler(i, size) for i in range(size)]
        self.agents = [Agent(s) for s in self.schedulers]
        self.turn = [0] * size
        self.inside = [False] * size
        self.found: list[tuple[bool, tuple[bool, bool]]] = []
        """turn by turn: whether there was a batch, and which graphs the leader could run in it"""
        self.client: Peer | None = None
        self.script: deque[tuple[int, str, dict[str, Any]]] = deque()
        self.page: int | None = None
        self.epoch = 0
        self.dead: list[tuple[int, Peer]] = []
        self.flipped = 0

    # --- ranks -----------------------------------------------------------------------------------

    def graphs(self, i: int) -> tuple[bool, bool]:
        runner = self.schedulers[i].tp_worker.model_runner
        return (
            runner.decode_cuda_graph_runner.can_run_graph(None),
            runner.prefill_cuda_graph_runner.can_run_graph(None),
        )

    def begin(self, i: int) -> None:
        self.turn[i] += 1
        self.inside[i] = True
        self.schedulers[i].get_next_batch_to_run()

    def finish(self, i: int, batch: bool) -> None:
        self.inside[i] = False
        if batch:
            self.schedulers[i].forward_ct += 1
        else:
            self.schedulers[i].on_idle()

    @rule(batch=st.booleans())
    def leader(self, batch: bool) -> None:
        if not self.inside[0]:
            if self.turn[0] - min(self.turn) < 3:
                self.begin(0)
            return
        self.found.append((batch, self.graphs(0)))
        self.finish(0, batch)

    @precondition(lambda self: self.size > 1)
    @rule(i=st.integers(1, 2))
    def member(self, i: int) -> None:
        i = min(i, self.size - 1)
        if not self.inside[i]:
            if self.turn[i] < self.turn[0]:
                self.begin(i)
        elif self.turn[i] <= len(self.found):
            batch, graphs = self.found[self.turn[i] - 1]
            if batch:
                assert self.graphs(i) == graphs, f"turn {self.turn[i]}: rank {i} is not where the leader was"
            self.finish(i, batch)

    @rule(turns=st.integers(1, 6), batch=st.booleans())
    def together(self, turns: int, batch: bool) -> None:
        """Some whole turns of everybody, so that flips get to where they take effect."""
        for _ in range(turns):
            if not self.inside[0]:
                self.leader(batch)
            if self.inside[0]:
                self.leader(batch)
            for i in range(1, self.size):
                while self.turn[i] < self.turn[0] or self.inside[i]:
                    self.member(i)

    # --- agents ----------------------------------------------------------------------------------

    @rule(i=st.integers(0, 2))
    def look(self, i: int) -> None:
        self.agents[min(i, self.size - 1)].tick(self.now)

    @rule(ms=st.sampled_from([1, 60, 700, 6000]))
    def wait(self, ms: int) -> None:
        self.now += ms * 1_000_000

    # --- the client ------------------------------------------------------------------------------

    @precondition(lambda self: self.client is None and not self.dead)
    @rule()
    def connect(self) -> None:
        self.client = Peer(f"client {self.now}")
        for agent in self.agents:
            agent.clients.append(self.client)

    @precondition(lambda self: self.client is not None and not self.script)
    @rule(switch=st.sampled_from(SWITCHES), what=st.sampled_from(["off", "off", "off", "on", "keep"]))
    def plan(self, switch: str, what: str) -> None:
        if what == "off":
            self.script.append((0, "switch.open", {}))
            self.script.extend((i, "switch.join", {}) for i in range(1, self.size))
            self.script.append((0, "switch.flip", {"switch": switch, "on": False, "for_s": 5}))
        elif what == "on":
            self.script.append((0, "switch.back", {"switch": switch}))
        else:
            self.script.append((0, "switch.keep", {"switch": switch}))

    @precondition(lambda self: self.client is not None and bool(self.script))
    @rule()
    def message(self) -> None:
        assert self.client is not None
        i, op, args = self.script.popleft()
        if op == "switch.join":
            if self.page is None:
                self.script.clear()
                return
            self.client.fds.append(os.dup(self.page))
            args = {"epoch": self.epoch}
        reply = self.agents[i].call(self.client, op, **args)
        if not reply["ok"]:
            self.script.clear()
        elif op == "switch.open":
            self.forget_page()
            self.page, self.epoch = self.client.handed.pop(), reply["result"]["epoch"]
        elif op == "switch.flip":
            self.flipped += 1

    @precondition(lambda self: self.client is not None)
    @rule()
    def die(self) -> None:
        """Killed between any two of its messages; each agent learns of it when its thread looks."""
        assert self.client is not None
        self.dead += [(i, self.client) for i in range(self.size)]
        self.client = None
        self.script.clear()

    @precondition(lambda self: bool(self.dead))
    @rule(data=st.data())
    def learn(self, data: st.DataObject) -> None:
        i, client = self.dead.pop(data.draw(st.integers(0, len(self.dead) - 1)))
        self.agents[i].drop(client)

    # --- in the end ------------------------------------------------------------------------------

    def forget_page(self) -> None:
        if self.page is not None:
            os.close(self.page)
            self.page = None

    def teardown(self) -> None:
        try:
            if not hasattr(self, "agents"):
                return
            if self.client is not None:
                self.die()
            while self.dead:
                i, client = self.dead.pop()
                self.agents[i].drop(client)
            for n in range(12):
                self.together(1, n % 2 == 0)
                for agent in self.agents:
                    agent.tick(self.now)
            assert [self.graphs(i) for i in range(self.size)] == [(True, True)] * self.size
            assert [a.busy() for a in self.agents] == [False] * self.size, "nothing keeps the hooks"
            for agent in self.agents:
                agent.undo()
            for s in self.schedulers:
                assert not {"get_next_batch_to_run", "on_idle"} & set(vars(s))
                assert not vars(s.tp_worker.model_runner.decode_cuda_graph_runner)
        finally:
            if hasattr(self, "agents"):
                self.forget_page()
            control.mono = self.before


Group.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGroup = Group.TestCase


@pytest.fixture
def group() -> Any:
    """Two ranks that turn together, attached by one client, with a page."""
    machine = Group()
    machine.start(2)
    machine.connect()
    yield machine
    machine.teardown()


def run_script(group: Group) -> None:
    while group.script:
        group.message()


def settle(group: Group, batch: bool = True, turns: int = 8) -> None:
    for _ in range(turns):
        group.together(1, batch)
        for agent in group.agents:
            agent.tick(group.now)


def test_a_flip_and_its_timer(group: Group) -> None:
    group.plan("cuda-graph-decode", "off")
    run_script(group)
    assert group.graphs(1) == (True, True), "not before its step"
    settle(group)
    assert group.graphs(0) == group.graphs(1) == (False, True)
    logs = [[row[:2] for row in a.control.state()["log"]] for a in group.agents]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 1
    group.now += 4 * SECOND
    settle(group)
    assert group.graphs(1) == (False, True)
    group.now += 2 * SECOND
    settle(group)
    assert group.graphs(0) == group.graphs(1) == (True, True)
    assert any("its time is over" in note for note in group.agents[0].notes)


def test_keep_outlives_the_timer_and_ends_with_the_client(group: Group) -> None:
    group.plan("cuda-graph-decode", "off")
    run_script(group)
    group.plan("cuda-graph-decode", "keep")
    run_script(group)
    group.now += 60 * SECOND
    settle(group)
    assert group.graphs(1) == (False, True)
    assert group.agents[0].control.state()["switches"][0]["left_s"] is None
    group.die()
    while group.dead:
        i, client = group.dead.pop()
        group.agents[i].drop(client)
    settle(group)
    assert group.graphs(0) == group.graphs(1) == (True, True)
    assert not any(a.busy() for a in group.agents)


def test_two_switches_are_independent(group: Group) -> None:
    for name in SWITCHES:
        group.plan(name, "off")
        run_script(group)
        settle(group)
    assert group.graphs(0) == group.graphs(1) == (False, False)
    group.plan(SWITCHES[0], "on")
    run_script(group)
    settle(group)
    assert group.graphs(0) == group.graphs(1) == (True, False)


def test_while_idle_a_flip_is_pending_and_its_timer_calls_it_off(group: Group) -> None:
    settle(group, batch=False)
    group.plan("cuda-graph-decode", "off")
    run_script(group)
    settle(group, batch=False)
    state = group.agents[0].control.state()["switches"][0]
    assert (state["state"], state["wanted"]) == ("pending", "off")
    group.now += 6 * SECOND
    settle(group, batch=False, turns=3)
    assert group.agents[0].control.state()["switches"][0]["state"] == "on"
    settle(group)
    assert all(not a.control.state()["log"] for a in group.agents), "it never took effect"


def test_while_idle_the_way_back_is_at_once(group: Group) -> None:
    group.plan("cuda-graph-decode", "off")
    run_script(group)
    settle(group)
    group.die()
    group.dead.sort(key=lambda d: d[0])
    for i, client in group.dead:
        group.agents[i].drop(client)
    group.dead.clear()
    settle(group, batch=False, turns=3)
    assert group.graphs(0) == group.graphs(1) == (True, True)
    ends = [a.control.state()["log"] for a in group.agents]
    assert all(not log for log in ends) or [r[:2] for r in ends[0]] == [r[:2] for r in ends[1]]


@pytest.mark.parametrize("why", ["retracted", "member leaves", "owner asks", "another asks"])
def test_what_else_sends_a_flip_back(group: Group, why: str) -> None:
    group.plan("cuda-graph-decode", "off")
    run_script(group)
    settle(group)
    if why == "retracted":
        group.agents[0].hooks.retracted = 3
    elif why == "member leaves":
        group.agents[1].drop(group.client)
    elif why == "owner asks":
        assert group.agents[0].call(group.client, "switch.back")["result"]["back"] == ["cuda-graph-decode"]
    else:
        other = Peer("other")
        assert group.agents[0].call(other, "switch.back", switch="cuda-graph-decode")["ok"]
    settle(group)
    assert group.graphs(0) == group.graphs(1) == (True, True)


def test_refusals(group: Group) -> None:
    client, leader, member = group.client, group.agents[0], group.agents[1]
    assert client is not None
    for agent, op, args, why in (
        (leader, "switch.flip", {"switch": "cuda-graph-decode", "on": False}, "switch.open comes first"),
        (leader, "switch.flip", {"switch": "warp", "on": False}, "there is no switch 'warp'"),
        (leader, "switch.flip", {"switch": "cuda-graph-decode", "on": "off"}, "on must be true or false"),
        (leader, "switch.flip", {"switch": "radix-cache", "on": False}, "has no SGLANG_RADIX_FORCE_MISS"),
        (leader, "switch.keep", {"switch": "cuda-graph-decode"}, "is not flipped"),
        (member, "switch.open", {}, "does not lead"),
        (member, "switch.join", {"epoch": 1}, "no page came"),
    ):
        reply = agent.call(client, op, **args)
        assert not reply["ok"]
        assert why in reply["error"]
    group.plan("cuda-graph-decode", "off")
    run_script(group)
    again = leader.call(client, "switch.flip", switch="cuda-graph-decode", on=False)
    assert "off already" in again["error"]
    other = Peer("other")
    assert "only they can keep it" in leader.call(other, "switch.keep", switch="cuda-graph-decode")["error"]
    for bad in (0, -1, 1e9, "long", True):
        reply = leader.call(client, "switch.flip", switch="cuda-graph-prefill", on=False, for_s=bad)
        assert "for_s is a number" in reply["error"]


def test_a_member_that_does_not_join(group: Group) -> None:
    client, leader = group.client, group.agents[0]
    assert client is not None
    assert leader.call(client, "switch.open")["ok"]
    os.close(client.handed.pop())
    assert leader.call(client, "switch.flip", switch="cuda-graph-decode", on=False)["ok"]
    settle(group)
    assert leader.control.state()["waits"] == "waiting for rank 1"
    group.now += 6 * SECOND
    settle(group)
    assert any("rank 1 did not join" in note for note in leader.notes)
    assert group.graphs(0) == group.graphs(1) == (True, True)


def test_a_page_that_is_none_is_refused(group: Group, tmp_path: Any) -> None:
    client, member = group.client, group.agents[1]
    assert client is not None
    with open(tmp_path / "page", "wb+") as f:
        f.truncate(4096)
        client.fds.append(os.dup(f.fileno()))
    assert "no memfd" in member.call(client, "switch.join", epoch=1)["error"]
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    client.fds.append(fd)
    assert "not a sealed page" in member.call(client, "switch.join", epoch=1)["error"]
    assert group.agents[0].call(client, "switch.open")["ok"]
    page = client.handed.pop()
    client.fds.append(page)
    assert "not the leader's page" in member.call(client, "switch.join", epoch=1)["error"]
    assert not client.fds


def test_in_a_forked_child_nothing_is_switched(group: Group) -> None:
    group.plan("cuda-graph-decode", "off")
    run_script(group)
    settle(group)
    group.agents[1].fork()
    assert group.graphs(1) == (True, True)
    group.schedulers[1].get_next_batch_to_run()
    assert "get_next_batch_to_run" not in vars(group.schedulers[1])
    # a child's memory is its own; here the rank has to go on
    group.agents[1].control._rank.arm()  # type: ignore[union-attr]
