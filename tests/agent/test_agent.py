"""The agent as a whole, in this process beside a fake scheduler: meeting, serving, refusing, leaving."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sgtop_agent import boot, clients, ops, serve, wire

from tests.agent import fake_sglang as fake
from tests.agent.meeting import TOKEN, Client, agent_threads, open_fds, options, take

wait_for = fake.wait_for


@pytest.fixture
def scheduler() -> Iterator[fake.Scheduler]:
    made = fake.make("ingest")
    with fake.running(made):
        wait_for(lambda: made.turns > 1)
        yield made
        wait_for(lambda: boot.RUNNING not in sys.modules and not agent_threads())


def attach(nonce: str = "beef", **more: Any) -> Client:
    boot.start(options(nonce, **more))
    client = take(nonce)
    client.hello()
    return client


def unhooked(scheduler: fake.Scheduler) -> bool:
    return "run_batch" not in vars(scheduler) and "on_idle" not in vars(scheduler)


def test_hello_says_everything_the_schema_has(scheduler: fake.Scheduler) -> None:
    client = attach()
    hello = client.kind("hello")
    assert set(wire.HELLO_AGENT) <= set(hello)
    assert hello["token"] == TOKEN
    assert hello["way"] == "pending-call"
    assert hello["loop"] == "event_loop_overlap"
    assert hello["pid"] == os.getpid()
    assert hello["sglang"] == "0.5.99"
    assert hello["modes"]["DECODE"] == int(fake.ForwardModeNew.DECODE)
    assert hello["rank"]["tp"] == 0
    assert hello["rank"]["dp"] is None
    assert hello["args"]["chunked_prefill_size"] == 64
    assert {"step", "stage", "gc", "queue", "forward", "graph", "boundary"} <= set(hello["caps"])
    assert "gpu-events" not in hello["caps"]
    client.close()


def test_events_and_stats_flow_and_steps_equal_the_difference_of_forward_ct(scheduler: fake.Scheduler) -> None:
    client = attach()
    client.kind("hello")
    client.wait(lambda f: f["k"] == "stat")
    before = scheduler.forward_ct
    scheduler.submit(fake.Req(prompt=100, new_tokens=30))
    wait_for(lambda: scheduler.forward_ct > before + 10 and not scheduler.running and not scheduler.inbox)
    wait_for(lambda: scheduler.last_batch is None)
    seen = client.wait(lambda f: f["k"] == "stat" and f["ct"] == scheduler.forward_ct)
    assert set(wire.STAT) <= set(seen)
    assert seen["off"] == {}
    client.pump(0.3)
    steps = sum(f["n"] for f in client.frames if f["k"] == "ev" and f["e"] == "step")
    assert steps == scheduler.forward_ct - before
    client.close()


@pytest.mark.parametrize("how", ["close", "detach"])
def test_leaving_takes_everything_away(scheduler: fake.Scheduler, how: str) -> None:
    threads, modules = threading.active_count(), set(sys.modules)
    for _ in range(3):
        before, seen = open_fds(), set(vars(scheduler))
        client = attach()
        client.kind("hello")
        assert not unhooked(scheduler)
        if how == "detach":
            assert client.call("detach")["ok"]
            assert client.kind("bye")["why"] == "detached"
        client.close()
        t = time.monotonic()
        wait_for(lambda: unhooked(scheduler), 5)
        assert time.monotonic() - t < 2
        wait_for(lambda: not agent_threads())
        wait_for(lambda before=before: open_fds() == before)
        assert set(vars(scheduler)) == seen
        assert boot.RUNNING not in sys.modules
    assert threading.active_count() == threads
    assert {m for m in set(sys.modules) - modules if "sgtop" in m} == set()


def test_a_late_start_does_nothing(scheduler: fake.Scheduler) -> None:
    boot.start(options(deadline_ns=time.monotonic_ns() - 1))
    time.sleep(0.2)
    assert unhooked(scheduler)
    assert boot.RUNNING not in sys.modules
    assert not agent_threads()


def test_nobody_comes(scheduler: fake.Scheduler) -> None:
    before = open_fds()
    boot.start(options(deadline_ns=time.monotonic_ns() + 200_000_000))
    wait_for(agent_threads)
    wait_for(lambda: not agent_threads())
    assert unhooked(scheduler)
    assert open_fds() == before


def test_wrong_token_is_refused_in_words_and_nothing_is_hooked(scheduler: fake.Scheduler) -> None:
    boot.start(options())
    client = take()
    client.hello(token="guess")
    assert client.kind("bye")["why"] == "wrong token"
    assert unhooked(scheduler)
    client.close()


def test_another_protocol_is_refused_in_words(scheduler: fake.Scheduler) -> None:
    boot.start(options())
    client = take()
    client.hello(proto=99)
    assert "protocol" in client.kind("bye")["why"]
    client.close()


def test_a_foreign_version_is_refused_and_the_first_client_stays(scheduler: fake.Scheduler) -> None:
    first = attach("aaaa")
    first.kind("hello")
    boot.start(options("bbbb", hash="other"))
    second = take("bbbb")
    second.hello()
    assert "another version" in second.kind("bye")["why"]
    second.close()
    assert not unhooked(scheduler)
    first.frames.clear()
    first.kind("stat")
    first.close()


def test_several_clients_share_one_agent_and_the_hooks_go_with_the_last(scheduler: fake.Scheduler) -> None:
    first, second = attach("aaaa"), attach("bbbb", token=TOKEN)
    assert first.kind("hello")["pid"] == second.kind("hello")["pid"]
    first.close()
    second.frames.clear()
    second.kind("stat")
    second.frames.clear()
    second.kind("stat")
    assert not unhooked(scheduler)
    second.close()
    wait_for(lambda: unhooked(scheduler))


def test_a_starting_server_is_said_to_start(scheduler: fake.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve.find, "find", lambda: None)
    client = attach()
    assert client.kind("bye")["why"].startswith("starting")
    client.close()


def test_a_silent_client_is_dropped_and_the_server_never_waits(
    scheduler: fake.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "CLIENT_TIMEOUT_S", 0.6)
    client = attach()
    wait_for(lambda: not unhooked(scheduler))
    ct = scheduler.forward_ct
    scheduler.submit(fake.Req(prompt=10, new_tokens=50))  # the client neither reads nor says anything
    wait_for(lambda: scheduler.forward_ct > ct + 40)
    wait_for(lambda: unhooked(scheduler))
    client.close()


def test_a_client_that_does_not_read_is_dropped_when_too_much_waits(
    scheduler: fake.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_QUEUED", 200_000)
    client = attach()
    client.kind("hello")
    agent = sys.modules[boot.RUNNING]._agent  # type: ignore[attr-defined]
    for _ in range(40):
        agent.post(lambda: agent.note("info", "x" * 50_000))
    wait_for(lambda: unhooked(scheduler))
    client.close()


def test_another_event_loop_is_followed(scheduler: fake.Scheduler) -> None:
    client = attach()
    client.kind("hello")
    done = threading.Event()

    def inner() -> None:  # a loop inside of the loop: what runs now is the innermost
        def leave() -> None:
            scheduler.gracefully_exit = True

        client.wait(lambda f: f["k"] == "note" and "event_loop_normal" in f["text"])
        scheduler.submit(leave)
        done.set()

    threading.Thread(target=inner, daemon=True).start()
    scheduler.submit(scheduler.event_loop_normal)
    assert done.wait(20)
    wait_for(lambda: not scheduler.inbox)
    client.close()
    wait_for(lambda: boot.RUNNING not in sys.modules)
    assert unhooked(scheduler)


def test_commands_are_answered_with_done_or_an_error_in_words(scheduler: fake.Scheduler) -> None:
    client = attach()
    client.kind("hello")
    where = client.call("where")
    assert where["ok"]
    assert any("event_loop_overlap" in line for line in where["result"]["stack"])
    unknown = client.call("make-coffee")
    assert not unknown["ok"]
    assert "make-coffee" in unknown["error"]
    nvtx = client.call("nvtx", on=True)
    assert not nvtx["ok"]
    assert "nvtx" in nvtx["error"]
    assert not client.call("nvtx", on="maybe")["ok"]
    client.close()


def test_extensions_register_operations_tick_pass_fds_and_are_undone(scheduler: fake.Scheduler) -> None:
    log: list[Any] = []
    read_end, write_end = os.pipe()

    def setup(agent: serve.Agent) -> None:
        agent.ops.register("fd", lambda call: (call.done({"sent": 1}, fds=[read_end]), ops.LATER)[1])
        agent.ops.register("step", lambda call: _step(agent, call))
        agent.every(20_000_000, lambda now: log.append("tick"))
        agent.on_client_gone(lambda client: log.append("gone"))
        agent.on_undo(lambda: log.append(("undo", unhooked(scheduler))))

    def _step(agent: serve.Agent, call: Any) -> Any:
        agent.at_step(lambda: agent.post(lambda: call.done({"ident": 1})) or None)
        return ops.LATER

    client = attach()
    agent = sys.modules[boot.RUNNING]._agent  # type: ignore[attr-defined]
    agent._setups.insert(0, setup)
    assert client.kind("hello")
    # the hooks may have gone on before the setup was added: make them go on again
    agent.post(lambda: setup(agent))
    wait_for(lambda: "tick" in log)
    reply = client.call("fd")
    assert reply["ok"]
    os.write(write_end, b"through")
    assert os.read(client.fds[0], 10) == b"through"
    assert client.call("step")["result"] == {"ident": 1}
    client.close()
    wait_for(lambda: unhooked(scheduler))
    assert log.index("gone") < log.index(("undo", False))
    os.close(read_end)
    os.close(write_end)


def test_ticks_come_before_each_flush_so_that_news_comes_before_rows(scheduler: fake.Scheduler) -> None:
    log: list[str] = []
    client = attach()
    client.kind("hello")
    agent = sys.modules[boot.RUNNING]._agent  # type: ignore[attr-defined]
    flush = agent._flushes.flush
    agent._flushes.flush = lambda *args: (log.append("flush"), flush(*args))
    agent.post(lambda: agent.every(3_600_000_000_000, lambda now: log.append("tick")))
    wait_for(lambda: log.count("flush") >= 5)
    client.close()
    flushes = [i for i, what in enumerate(log) if what == "flush" and "tick" in log[:i]]
    assert len(flushes) >= 3
    assert {log[i - 1] for i in flushes} == {"tick"}


@given(data=st.binary(min_size=1, max_size=200))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_before_and_after_hello_costs_only_the_client(scheduler: fake.Scheduler, data: bytes) -> None:
    client = attach()
    client.kind("hello")
    client.sock.sendall(b"\xff\xff\xff\x7f" + data)
    wait_for(lambda: (client.pump(), client.eof)[1])
    client.close()
    boot.start(options("cccc"))
    other = take("cccc")
    other.sock.sendall(wire.pack({"k": "cmd", "op": "where"}))
    wait_for(lambda: (other.pump(), other.eof)[1])
    other.close()
    wait_for(lambda: boot.RUNNING not in sys.modules)
    ct = scheduler.forward_ct
    scheduler.submit(fake.Req(prompt=1, new_tokens=2))
    wait_for(lambda: scheduler.forward_ct > ct)


def test_a_truncated_frame_is_waited_for_and_then_dropped_with_its_client(
    scheduler: fake.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "CLIENT_TIMEOUT_S", 0.5)
    client = attach()
    client.kind("hello")
    client.sock.sendall(wire.pack({"k": "cmd", "id": 1, "op": "where", "args": {}})[:-3])
    wait_for(lambda: unhooked(scheduler))
    client.close()


def test_listening_meets_by_path_and_leaves_no_file(scheduler: fake.Scheduler, tmp_path: Any) -> None:
    import socket

    folder = tmp_path / "sockets"
    boot.start(options(rendezvous="listen", dir=str(folder)))
    path = folder / f"sgtop-{os.getpid()}.sock"
    wait_for(path.exists)
    assert sorted(p.name for p in folder.iterdir()) == [path.name]  # the injection carried the token
    sock = socket.socket(socket.AF_UNIX)
    wait_for(lambda: sock.connect_ex(str(path)) == 0)
    client = Client(sock.detach())
    client.hello()
    assert client.kind("hello")["loop"] == "event_loop_overlap"
    client.close()
    wait_for(lambda: unhooked(scheduler))
    wait_for(lambda: not path.exists())
