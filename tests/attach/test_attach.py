"""The pending call end to end, with a tiny agent: attach, talk, leave without a trace."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from sgtop_probes.attach import pending, pidfd, tracer
from sgtop_probes.errors import AttachError

from . import rig
from .test_busy_targets import BLOB, needs_compiler


@pytest.mark.parametrize("thread", ["main", "auto"])
def test_attach_talk_leave(thread: str) -> None:
    with rig.target("objects") as t:
        connection = rig.attach(t, thread=thread, ways=("pending-call",))
        assert connection.way == "pending-call"
        assert connection.hello["pid"] == t.pid
        assert rig.echo(connection)["ok"]
        assert "sgtop-agent" in t.comms()
        connection.close()
        rig.wait_for(lambda: "sgtop-agent" not in t.comms())
        report = t.end()
    assert report["modules"] == []
    assert report["finders"] == 0
    assert report["errors"] == 0


@pytest.mark.parametrize("thread", ["main", "helper"])
def test_no_trace_after_many_cycles(thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is given back, and descriptors and threads are as before."""
    pages: list[tuple[int, int]] = []
    run = tracer.run

    def watched(*args: Any, **options: Any) -> pending.Queued:
        queued = run(*args, **options)
        pages.append(queued.page)
        return queued

    monkeypatch.setattr(tracer, "run", watched)
    with rig.target("parked", helpers=0) as t:
        seen = []
        for _ in range(20):
            connection = rig.attach(t, ways=("pending-call",), thread=thread)
            rig.echo(connection)
            connection.close()
            rig.wait_for(lambda: not any(c.startswith("sg") for c in t.comms()))
            rig.wait_for(lambda: not t.maps_at(*pages[-1]))
            seen.append((t.fds(), len(t.comms())))
        report = t.end()
    assert len(pages) >= 20
    assert len(set(seen[3:])) == 1
    assert report["modules"] == []
    assert report["finders"] == 0


def test_two_clients_at_once() -> None:
    with rig.target("quiet") as t:
        one, other = rig.attach(t), rig.attach(t)
        assert rig.echo(other)["ok"]
        one.close()
        assert rig.echo(other)["ok"]
        other.close()
        t.end()


def test_main_thread_that_never_lets_go_of_the_gil() -> None:
    """Alone and in pure Python: a helper's call would not be noticed before 3.13, so the main thread is nudged."""
    with rig.target("spin", helpers=0) as t:
        connection = rig.attach(t, ways=("pending-call",))
        connection.close()
        t.end()


@pytest.mark.parametrize("version", list(rig.pythons()))
def test_every_interpreter(version: str) -> None:
    with rig.target("objects", python=rig.pythons()[version]) as t:
        connection = rig.attach(t, ways=("pending-call",))
        assert rig.echo(connection)["ok"]
        connection.close()
        rig.wait_for(lambda: "sgtop-agent" not in t.comms())
        assert t.end()["errors"] == 0


def test_socket_folder_where_pidfd_getfd_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's seccomp profile without CAP_SYS_PTRACE: a private folder instead, gone again at once."""
    monkeypatch.setattr(pidfd, "works", lambda: False)
    before = rig.private_folders()
    with rig.target("quiet") as t:
        connection = rig.attach(t)
        assert rig.private_folders() <= before
        assert rig.echo(connection)["ok"]
        connection.close()
        t.end()


@needs_compiler
@pytest.mark.parametrize("thread", ["main", "auto"])
def test_signals_are_delivered_after_the_call(thread: str) -> None:
    """Real-time signals queue: each that was sent while threads were borrowed arrives, once."""
    sent = 0
    with rig.target("signals") as t:
        child = os.fork()
        if child == 0:
            for _ in range(2000):
                os.kill(t.pid, signal.SIGRTMIN + 3)
                time.sleep(0.0005)
            os._exit(0)
        for _ in range(12):
            tracer.run(t.pid, b"0\n", BLOB, thread)
        os.waitpid(child, 0)
        sent = 2000
        time.sleep(0.2)
        assert t.end()["runs"] == sent


def test_wrong_token() -> None:
    with rig.target("quiet", env={"TINY_WRONG_TOKEN": "1"}) as t:
        with pytest.raises(AttachError, match="token is wrong"):
            rig.attach(t)
        t.end()


def test_foreign_protocol() -> None:
    with rig.target("quiet", env={"TINY_PROTO": "99"}) as t:
        with pytest.raises(AttachError, match="protocol 99") as caught:
            rig.attach(t)
        assert caught.value.kind == "foreign"
        assert "same version" in caught.value.mend
        t.end()


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("another version of sgtop's agent runs in this server (sources 'abc')", "foreign"),
        ("starting: no event loop frame yet", "starting"),
        ("it does not like you", "failed"),
    ],
)
def test_agent_refuses(why: str, kind: str) -> None:
    with rig.target("quiet", env={"TINY_BYE": why}) as t:
        with pytest.raises(AttachError) as caught:
            rig.attach(t)
        assert caught.value.kind == kind
        assert caught.value.why == why
        t.end()


@pytest.mark.parametrize("garbage", ["\xff\xff\xff\xff", "HTTP/1.1 400 Bad Request\r\n\r\n", ""])
def test_garbage_instead_of_a_hello(garbage: str) -> None:
    with rig.target("quiet", env={"TINY_GARBAGE": garbage}) as t:
        with pytest.raises(AttachError, match=r"not an sgtop agent|does not answer|closed the connection"):
            rig.attach(t, timeout_s=4)
        t.end()


def test_tracer_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded host: the agent's time begins when its call is queued, not when the tracer was asked for."""
    run = tracer.run

    def late(*args: object, **options: object) -> object:
        time.sleep(2.5)
        return run(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tracer, "run", late)
    with rig.target("quiet") as t:
        rig.attach(t, timeout_s=4, ways=("pending-call",)).close()
        t.end()
