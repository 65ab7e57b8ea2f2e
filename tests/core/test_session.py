"""The session on a machine that exists only here: servers come and go, agents answer, leave, hang, talk garbage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sgtop_agent import wire
from sgtop_core.live import link, outside, watch
from sgtop_core.live.outside import Outside
from sgtop_core.model.snapshot import Process, Snapshot
from sgtop_core.session import Session, SessionOptions
from sgtop_core.simulate.loop import Behaviour, SimRank, hello
from sgtop_core.simulate.scenes import decode_bound, idle
from sgtop_probes.client import ConnectionLost
from sgtop_probes.discovery import HelperProcess, RankProcess, Server
from sgtop_probes.errors import AttachError, TargetError
from sgtop_probes.http import HttpError, Load, Sample
from sgtop_probes.launch import LaunchArgs

WAIT_S = 10.0


class FakeConnection:
    def __init__(self, sim: SimRank, way: str = "pending-call") -> None:
        self.sim, self.way = sim, way
        self.hello = sim.hello
        self.sent: list[wire.Frame] = []
        self.closed = False
        self.silent = False
        self.die: str | None = None
        self.extra: list[wire.Frame] = []
        self.answer: Callable[[wire.Frame], wire.Frame | None] = lambda f: {
            "k": "reply",
            "id": f["id"],
            "ok": True,
            "result": f["op"],
        }

    def receive(self) -> list[wire.Frame]:
        if self.die is not None:
            raise ConnectionLost(self.die)
        out, self.extra = self.extra, []
        if not self.silent:
            now = time.monotonic_ns()
            self.sim.run(now)
            out = self.sim.frames(now) + out
        return out

    def send(self, frame: wire.Frame) -> None:
        if self.closed:
            raise ConnectionLost("closed")
        self.sent.append(frame)
        if frame.get("op") == "detach":
            self.extra.append({"k": "bye", "why": "detached"})
        elif (reply := self.answer(frame)) is not None:
            self.extra.append(reply)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeHttp:
    metrics_on: bool = False
    scrapes: int = 0
    problem: HttpError | None = None

    def server_info(self) -> dict[str, Any]:
        if self.problem:
            raise self.problem
        return {"version": "0.5.20", "tp_size": 1, "model_path": "m", "device": "cuda"}

    def loads(self) -> list[Load]:
        return [Load(0, 5, 2, 30, 100)]

    def metrics(self) -> dict[str, list[Sample]]:
        self.scrapes += 1
        return samples(1_000 + 400 * self.scrapes, 50 + 40 * self.scrapes) if self.metrics_on else {}


class FakeMachine:
    def __init__(self, tp: int = 2, behaviour: Behaviour = decode_bound) -> None:
        self.tp, self.behaviour = tp, behaviour
        self.pid = 100
        self.up = True
        self.state = "running"
        self.ranks_up = True
        self.errors: dict[str, AttachError] = {}
        self.block: dict[str, threading.Event] = {}
        self.connections: dict[str, list[FakeConnection]] = {}
        self.http_client: FakeHttp | None = FakeHttp()
        self.opened = 0
        self.is_stopped = False
        self.lock = threading.Lock()

    def server(self) -> Server:
        ranks = tuple(
            RankProcess(f"TP{r}", self.pid + 1 + r, tp=r, state=self.state)
            for r in range(self.tp if self.ranks_up else 0)
        )
        return Server(
            pid=self.pid, port=30000, host="127.0.0.1", state=self.state, ranks=ranks,
            helpers=(HelperProcess("detokenizer", self.pid + 50),), args=LaunchArgs(model="/m/qwen", port=30000), uid=0,
            container=None, own_network=True,
        )  # fmt: skip

    def resolve(self, target: str | None) -> Server:
        if not self.up or (target and target.startswith("pid:") and target != f"pid:{self.pid}"):
            raise TargetError("nothing listens on port 30000 of this machine", "", "start one")
        return self.server()

    def open_rank(self, rank: RankProcess, nvtx: bool, on_event: Callable[[str], None]) -> FakeConnection:
        on_event(f"{rank.label}: no plugin")
        if rank.label in self.block:
            self.block[rank.label].wait(30)
        if rank.label in self.errors:
            raise self.errors[rank.label]
        now = time.monotonic_ns()
        sim = SimRank(rank.tp or 0, self.behaviour, hello(rank.tp or 0, tp=self.tp, now=now, pid=self.pid + 1), now)
        c = FakeConnection(sim)
        with self.lock:
            self.opened += 1
            self.connections.setdefault(rank.label, []).append(c)
        return c

    def identity(self, pid: int) -> object | None:
        return self.pid if self.up and self.pid <= pid <= self.pid + 60 else None

    def stopped(self, pid: int) -> bool:
        return self.is_stopped

    def http(self, server: Server) -> FakeHttp | None:
        return self.http_client

    def processes(self, server: Server) -> Sequence[Process]:
        return [
            Process("detokenizer", self.pid + 50, 0.4, 1000, 3),
            *(Process(f"scheduler {r.label}", r.pid or 0, 0.9, 2000, 9) for r in server.ranks),
        ]

    def restart(self) -> None:
        self.pid += 1000
        for cs in self.connections.values():
            for c in cs:
                c.die = "the agent closed the connection"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SEARCH_S", 0.1)
    monkeypatch.setattr(watch, "PERIOD_S", 0.05)
    monkeypatch.setattr(watch, "EVERY_S", 0.2)
    monkeypatch.setattr(outside, "EVERY_S", 0.2)
    monkeypatch.setattr(link, "RETRY_S", dict.fromkeys(link.RETRY_S, 0.1))


@pytest.fixture
def sessions():
    made: list[Session] = []

    def make(machine: FakeMachine, **options: Any) -> Session:
        s = Session(":30000", SessionOptions(**options), backend=machine)
        made.append(s)
        s.start()
        return s

    yield make
    for s in made:
        s.stop()


def until(s: Session, true: Callable[[Snapshot], object], what: str = "") -> Snapshot:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        shot = s.snapshot()
        if true(shot):
            return shot
        time.sleep(0.02)
    raise AssertionError(f"{what or 'it'} did not happen; {s.snapshot().attach}, log {s.snapshot().log}")


def live(shot: Snapshot) -> bool:
    return shot.attach.state == "live" and all(r.state == "live" and r.modes for r in shot.ranks)


def test_attaches_to_every_rank_and_shows_steps(sessions) -> None:
    s = sessions(FakeMachine(tp=4))
    shot = until(s, live)
    assert [r.rank for r in shot.ranks] == ["TP0", "TP1", "TP2", "TP3"]
    assert shot.attach.way == "pending-call"
    assert (shot.server.port, shot.server.tp, shot.server.sglang_version) == (30000, 4, "0.5.23")
    assert shot.server.model == "Qwen/Qwen3-8B"
    assert any("TP0: attached through pending-call" in x for x in shot.log)
    shot = until(s, lambda x: x.processes and x.ranks[0].cpu_share == 0.9)
    assert [p.role for p in shot.processes] == ["detokenizer"]
    assert until(s, lambda x: x.overhead.client_cpu_share is not None).overhead.client_cpu_share > 0


def test_four_snapshots_a_second_that_never_change(sessions) -> None:
    s = sessions(FakeMachine(tp=1))
    until(s, live)
    seen: list[Snapshot] = []
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        shot = s.snapshot()
        if not seen or shot is not seen[-1]:
            seen.append(shot)
        time.sleep(0.01)
    assert 2 <= len(seen) <= 12
    with pytest.raises(AttributeError):
        seen[0].time = 0.0  # type: ignore[misc]


def test_no_server_is_said_before_anything_starts() -> None:
    m = FakeMachine()
    m.up = False
    s = Session(":30000", backend=m)
    before = threading.active_count()
    with pytest.raises(TargetError):
        s.start()
    assert threading.active_count() == before
    s.stop()


def test_stop_detaches_every_rank_quickly(sessions) -> None:
    m = FakeMachine(tp=8)
    s = sessions(m)
    until(s, live)
    begin = time.monotonic()
    s.stop()
    assert time.monotonic() - begin < 5  # well under a second on a quiet machine; bench/ measures it
    connections = [c for cs in m.connections.values() for c in cs]
    assert len(connections) == 8
    assert all(c.closed for c in connections)
    assert all(any(f.get("op") == "detach" for f in c.sent) for c in connections)
    s.stop()
    names = {t.name for t in threading.enumerate()}
    assert "sgtop-session" not in names


def test_a_rank_that_cannot_be_attached_holds_nobody_up(sessions) -> None:
    m = FakeMachine(tp=2)
    m.block["TP1"] = threading.Event()
    s = sessions(m)
    shot = until(s, lambda x: x.ranks[0].modes)
    assert shot.ranks[1].state == "connecting"
    begin = time.monotonic()
    s.stop()
    assert time.monotonic() - begin < 5
    m.block["TP1"].set()
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and not any(c.closed for c in m.connections.get("TP1", [])):
        time.sleep(0.01)
    assert m.connections["TP1"][0].closed, "a connection that comes after the end is closed at once"


def test_a_restart_is_said_waited_for_and_attached_to_again(sessions) -> None:
    m = FakeMachine(tp=2)
    s = sessions(m)
    until(s, live)
    m.up = False
    for cs in m.connections.values():
        for c in cs:
            c.die = "the agent closed the connection"
    shot = until(s, lambda x: x.attach.state == "waiting")
    assert "has ended; waiting for it to come back on port 30000" in shot.attach.message
    assert {r.state for r in shot.ranks} == {"lost"}
    m.pid += 1000
    m.connections.clear()
    m.up = True
    shot = until(s, lambda x: live(x) and x.server.pid == m.pid)
    assert shot.ranks[0].pid == m.pid + 1
    assert shot.covered_s < 4.9
    assert any("server found" in x for x in shot.log)


def test_a_quick_restart_is_noticed_although_the_port_never_closed(sessions) -> None:
    m = FakeMachine(tp=1)
    s = sessions(m)
    until(s, live)
    m.restart()
    shot = until(s, lambda x: x.server.pid == m.pid and live(x))
    assert shot.ranks[0].pid == m.pid + 1


def test_a_lost_connection_is_made_again(sessions) -> None:
    m = FakeMachine(tp=1)
    s = sessions(m)
    until(s, live)
    first = m.connections["TP0"][0]
    first.extra.append({"k": "bye", "why": "silent for 5 s"})
    first.silent = True
    until(s, lambda x: True)
    time.sleep(0.15)
    first.die = "the agent closed the connection"
    shot = until(s, lambda x: any("the agent left: silent for 5 s" in line for line in x.log))
    until(s, lambda x: live(x) and len(m.connections["TP0"]) == 2)
    assert first.closed
    assert shot is not None


def test_a_server_that_starts_is_waited_for(sessions) -> None:
    m = FakeMachine(tp=2)
    m.state, m.ranks_up = "starting", False
    s = sessions(m)
    shot = until(s, lambda x: x.attach.state == "starting")
    assert shot.ranks == ()
    m.ranks_up = True
    m.errors = {f"TP{r}": AttachError("starting", "it captures CUDA graphs", kind="starting") for r in range(2)}
    shot = until(s, lambda x: x.ranks and x.ranks[0].state == "starting" and "captures" in x.ranks[0].message)
    assert shot.attach.state == "starting"
    m.errors.clear()
    m.state = "running"
    until(s, live)


def test_a_scheduler_that_hangs_gets_its_verdict_and_is_tried_again(sessions) -> None:
    m = FakeMachine(tp=1)
    m.errors["TP0"] = AttachError("TP0 hangs", "main thread not in Python for 40 s, in ioctl", kind="hung")
    s = sessions(m)
    shot = until(s, lambda x: x.attach.state == "hung")
    assert "not in Python for 40 s" in shot.attach.message
    assert shot.ranks[0].state == "hung"
    m.errors.clear()
    until(s, live)


def samples(tokens: float, graph: float) -> dict[str, list[Sample]]:
    own = {"tp_rank": "0", "pp_rank": "0"}

    def one(v: float, **labels: str) -> list[Sample]:
        return [Sample({**own, **labels}, v)]

    return {
        "sglang:num_running_reqs": one(7),
        "sglang:num_queue_reqs": one(3),
        "sglang:token_usage": one(0.4),
        "sglang:realtime_tokens_total": one(tokens, mode="decode"),
        "sglang:cuda_graph_passes_total": one(graph, mode="decode_cuda_graph") + one(5, mode="decode_none"),
        "sglang:scheduler_stage_seconds_total": one(graph / 100, category="run_batch"),
    }


def test_without_permission_it_goes_on_from_outside_and_says_what_is_missing(sessions) -> None:
    m = FakeMachine(tp=2)
    for r in range(2):
        m.errors[f"TP{r}"] = AttachError(
            "no permission to trace", "yama", "sudo sysctl kernel.yama.ptrace_scope=0", "permission"
        )
    assert m.http_client is not None
    m.http_client.metrics_on = True
    s = sessions(m)
    shot = until(s, lambda x: x.attach.state == "agentless" and x.ranks[0].queue.running == 7)
    assert shot.attach.way == "agentless"
    assert "sudo sysctl" in shot.attach.message
    assert shot.ranks[1].state == "agentless"
    assert (shot.ranks[0].queue.waiting, shot.ranks[0].kv_usage) == (3, 0.4)
    shot = until(s, lambda x: "DECODE" in x.ranks[0].modes)
    d = shot.ranks[0].modes["DECODE"]
    assert (d.steps, d.graph_share, d.batch_p50) == (40, 1.0, None)
    assert d.tokens_per_s == pytest.approx(10 * d.steps_per_s)
    assert shot.ranks[0].stages_s == {"run_batch": pytest.approx(0.4)}
    assert shot.covered_s == pytest.approx(40 / d.steps_per_s), "whoever divides by it gets rates, not millions"
    assert shot.server.sglang_version == "0.5.20"
    assert shot.ranks[0].gaps is None
    tried = m.opened
    time.sleep(0.4)
    assert m.opened == tried == 0, "a missing permission does not come by itself"


def test_agentless_without_metrics_reads_the_loads() -> None:
    o = Outside(FakeHttp())
    o.look(0.0)
    assert "--enable-metrics" in o.problem
    r = o.rank(RankProcess("TP0", 5, tp=0), "why", 0.7)
    assert (r.state, r.queue.running, r.queue.waiting, r.kv_usage, r.cpu_share) == ("agentless", 5, 2, 0.3, 0.7)
    assert r.modes == {}


def test_agentless_without_an_answer_says_so() -> None:
    http = FakeHttp(problem=HttpError("/server_info: Connection refused"))
    o = Outside(http)
    o.look(0.0)
    assert o.rank(RankProcess("TP0", 5), "why", None).queue.running == 5
    assert o.problem


def test_commands_reach_their_agent_and_come_back(sessions) -> None:
    m = FakeMachine(tp=2)
    s = sessions(m)
    until(s, live)
    assert s.command("TP1", "where", {}) == {"ok": True, "result": "where"}
    reply = s.command(None, "nvtx", {"on": True})
    assert reply == {"ok": True, "result": {"TP0": "nvtx", "TP1": "nvtx"}}
    m.connections["TP1"][0].answer = lambda f: {"k": "reply", "id": f["id"], "ok": False, "error": "cannot"}
    reply = s.command(None, "nvtx", {"on": False})
    assert reply["ok"] is False
    assert reply["error"] == "TP1: cannot"
    assert s.command("TP9", "where", {}) == {"ok": False, "error": "TP9 has no agent"}


def test_a_command_to_an_agent_that_leaves_is_answered(sessions) -> None:
    m = FakeMachine(tp=1)
    s = sessions(m)
    until(s, live)
    c = m.connections["TP0"][0]

    def leave(frame: wire.Frame) -> None:
        c.die = "the agent closed the connection"

    c.answer = leave
    assert s.command("TP0", "where", {}) == {"ok": False, "error": "the agent closed the connection"}


def test_readonly_refuses_what_changes_the_server(sessions) -> None:
    m = FakeMachine(tp=1)
    s = sessions(m, readonly=True)
    until(s, live)
    assert s.readonly
    assert "--readonly" in str(s.command(None, "switch", {"name": "radix"})["error"])
    assert s.command("TP0", "where", {})["ok"]
    assert [f["op"] for f in m.connections["TP0"][0].sent if f["k"] == "cmd"] == ["where"]


def test_windows(sessions) -> None:
    s = sessions(FakeMachine(tp=1))
    until(s, live)
    s.set_window(60)
    shot = until(s, lambda x: x.window_s == 60.0)
    assert shot.strip_cell_s == pytest.approx(0.48)
    s.set_window(600)
    until(s, lambda x: x.window_s == 600.0)


def test_garbage_from_an_agent_ends_that_connection_only(sessions) -> None:
    m = FakeMachine(tp=2)
    s = sessions(m)
    until(s, live)
    m.connections["TP0"][0].extra.append({"k": "ev", "e": "step", "n": 3, "c": {"ct": b"short"}})
    until(s, lambda x: len(m.connections["TP0"]) == 2 and live(x))
    assert len(m.connections["TP1"]) == 1


def test_notes_and_hooks_that_switched_themselves_off_are_in_the_log(sessions) -> None:
    m = FakeMachine(tp=1)
    s = sessions(m)
    until(s, live)
    c = m.connections["TP0"][0]
    c.extra.append({"k": "note", "t": 1, "level": "warning", "text": "GPU events are off"})
    c.extra.append(
        {"k": "stat", "t": time.monotonic_ns(), "ct": 5, "lost": {"stage": 7}, "off": {"gc": "ValueError: x"}}
    )
    shot = until(s, lambda x: any("hook gc switched itself off" in y for y in x.log))
    assert any("GPU events are off" in y for y in shot.log)


def test_taps_see_every_frame_and_hello(sessions) -> None:
    m = FakeMachine(tp=1, behaviour=idle)
    s = Session(":30000", backend=m)
    kinds: list[tuple[str, str]] = []
    s.taps.append(lambda label, frame, now: kinds.append((label, frame["k"])))
    try:
        s.start()
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end and not {("TP0", "hello"), ("TP0", "ev"), ("TP0", "stat")} <= set(kinds):
            time.sleep(0.02)
        assert next(k for k in kinds if k[0] == "TP0") == ("TP0", "hello")
    finally:
        s.stop()


def test_ranks_of_other_hosts_are_named(sessions) -> None:
    m = FakeMachine(tp=1)
    own = m.server

    def two_nodes() -> Server:
        return replace(own(), ranks=(*own().ranks, RankProcess("TP1", None, tp=1, state="elsewhere")))

    m.server = two_nodes  # type: ignore[method-assign]
    s = sessions(m)
    shot = until(s, live)
    assert shot.server.ranks_elsewhere == ("TP1",)
    assert [r.rank for r in shot.ranks] == ["TP0"]


def test_a_rank_without_steps_is_asked_where_it_is(sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgtop_core.model import model

    monkeypatch.setattr(model, "HUNG_NS", 1_000_000_000)
    m = FakeMachine(tp=1)
    s = sessions(m)
    until(s, live)
    c = m.connections["TP0"][0]
    stack = {"stack": ["all_reduce (parallel_state.py:1)", "run_batch (scheduler.py:2)"], "ct": 3}
    c.answer = lambda f: {"k": "reply", "id": f["id"], "ok": True, "result": stack}
    t = time.monotonic_ns
    c.silent = True

    def frames() -> list[wire.Frame]:
        if c.die:
            raise ConnectionLost(c.die)
        out, c.extra = c.extra, []
        return [*out, {"k": "stat", "t": t(), "ct": 3, "lost": {}, "off": {}}]

    c.receive = frames  # type: ignore[method-assign]
    shot = until(s, lambda x: "all_reduce" in x.ranks[0].message, "the place")
    assert shot.attach.state == "hung"


def test_a_stopped_process_is_called_stopped(sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgtop_core.model import model

    monkeypatch.setattr(model, "SILENT_NS", 500_000_000)
    m = FakeMachine(tp=1)
    s = sessions(m)
    until(s, live)
    m.is_stopped = True
    m.connections["TP0"][0].silent = True
    shot = until(s, lambda x: x.ranks[0].state == "hung")
    assert f"kill -CONT {m.pid + 1}" in shot.ranks[0].message
    m.connections["TP0"][0].silent = False
    until(s, live)
