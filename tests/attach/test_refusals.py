"""Processes that must not, or cannot, be attached to: a verdict in words, no harm, and nothing that fires late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sgtop_probes
from sgtop_probes import discovery
from sgtop_probes.attach import AttachOptions, ladder, open_rank, payload, pending, tracer
from sgtop_probes.discovery import RankProcess
from sgtop_probes.errors import AttachError
from sgtop_probes.launch import LaunchArgs

from . import rig

PROBES = str(Path(sgtop_probes.__file__).parents[1])


def refused(t: rig.Target, **options: object) -> AttachError:
    with pytest.raises(AttachError) as caught:
        rig.attach(t, **options)
    return caught.value


def test_stopped_process() -> None:
    with rig.target("quiet") as t:
        os.kill(t.pid, signal.SIGSTOP)
        rig.wait_for(lambda: Path(f"/proc/{t.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        error = refused(t, timeout_s=3)
        assert error.kind == "hung"
        assert "stopped (state T)" in error.why
        os.kill(t.pid, signal.SIGCONT)
        rig.attach(t).close()
        t.end()


def test_stopped_after_the_call_was_queued() -> None:
    """The agent was promised a client and finds a deadline that has passed."""
    with rig.target("nap") as t:
        agent = payload.build(rig.tiny_agent(), sys.version_info[:2])
        opts = {"way": "pending-call", "token": "t", "rendezvous": "pair", "nonce": "0000", "dir": None, "nvtx": False}
        page = payload.for_page(agent, opts)
        tracer.run(t.pid, page.source, page.blob, life=pending.Life(0.3))
        os.kill(t.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(t.pid, signal.SIGCONT)
        time.sleep(4)
        assert not any(c.startswith("sg") for c in t.comms())
        report = t.end()
    assert report["modules"] == []
    assert report["finders"] == 0


@pytest.mark.parametrize("thread", ["auto", "main"])
def test_blocked_in_c_and_nothing_fires_late(thread: str) -> None:
    with rig.target("nap", helpers=0) as t:
        fds = t.fds()
        start = time.monotonic()
        error = refused(t, timeout_s=1.5, thread=thread)
        assert time.monotonic() - start < 3.5
        assert error.kind == "hung"
        assert "main thread not in Python for" in error.why
        assert "futex (waiting for a lock or for another thread)" in error.why
        time.sleep(4)  # it is back in Python by now, and what was queued has run
        assert t.fds() == fds
        assert not any(c.startswith("sg") for c in t.comms())
        rig.attach(t).close()  # it can be attached to as soon as it is back
        rig.wait_for(lambda: not any(c.startswith("sg") for c in t.comms()))
        report = t.end()
    assert report["modules"] == []
    assert report["finders"] == 0


def test_blocked_for_ever() -> None:
    """Tried again and again, the verdict stays, and the interpreter's queue is not filled up."""
    with rig.target("forever") as t:
        for _ in range(3):
            error = refused(t, timeout_s=0.7)
            assert error.kind == "hung"
        assert "asleep in futex" in error.why
        os.kill(t.pid, signal.SIGTERM)  # its handler is the default one
        assert t.process.wait(10) == -signal.SIGTERM


def test_computing_in_native_code() -> None:
    if rig.native() is None:
        pytest.skip("the targets' C part needs a compiler")
    with rig.target("long_c_gil", helpers=0) as t:
        error = refused(t, timeout_s=0.25)
        assert "native code" in error.why
        t.end()


TRACER = """
import sys, time
sys.path.insert(0, {probes!r})
from sgtop_probes.attach import ptrace
ptrace.request(ptrace.SEIZE, {pid})
print("SEIZED", flush=True)
time.sleep(60)
"""


def test_another_tracer() -> None:
    with rig.target("quiet") as t:
        code = TRACER.format(probes=PROBES, pid=t.pid)
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == "SEIZED"
            error = refused(t, timeout_s=3)
            assert error.kind == "traced"
            assert str(other.pid) in error.why
        finally:
            other.kill()
            other.communicate()
        rig.attach(t).close()
        t.end()


# --- the tracer child is killed ---------------------------------------------------------------------

KILLED = """
import os, signal, sys, time
sys.path.insert(0, {probes!r})
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
from sgtop_probes.attach import interpreter, pending, ptrace
pid, tid = {pid}, {pid}
python = interpreter.inspect(pid)
page = pending.Page(b"try:\\n exec('import __main__;__main__.RUNS+=1')\\nexcept BaseException:pass\\n", bytes(65536))
where = {where!r}
def here():
    print("HERE", flush=True)
    time.sleep(60)
if where == "before the stop":
    here()
if where == "after it":
    pending.queue(pid, page, "main")
    here()
tracee = ptrace.Tracee(pid, tid)
tracee.stop()
here()
"""


@pytest.mark.parametrize("where", ["before the stop", "stopped, nothing borrowed yet", "after it"])
def test_tracer_killed(where: str) -> None:
    """Outside of its window the tracer's death costs the target nothing."""
    with rig.target("objects", helpers=0) as t:
        code = KILLED.format(probes=PROBES, pid=t.pid, where=where)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "HERE"
        child.kill()
        child.communicate()
        time.sleep(0.2)
        loops_run = rig.attach(t, ways=("pending-call",))
        loops_run.close()
        report = t.end()  # SIGTERM arrives: no signal stayed blocked
    assert report["runs"] == (1 if where == "after it" else 0)
    assert report["errors"] == 0


@pytest.mark.parametrize("missing", [1, 4096, 200_000])
def test_sgtop_killed_while_it_hands_the_agent_over(missing: int) -> None:
    """The tracer child gets less than was announced: it queues nothing.

    A page shorter than its source believes would, on its return, take the target's memory behind it along; a server
    was killed that way (`kill -9` of sgtop within the first milliseconds of an attach, one time in four).
    """
    with rig.target("quiet") as t:
        page = pending.Page(b"0\n", os.urandom(260_000))
        request = {
            "pid": t.pid,
            "source": 2,
            "bytes": 2 + len(page.blob),
            "thread": "auto",
            "seconds": 1,
            "offset_ns": 0,
        }
        code = f"import sys; sys.path.insert(0, {PROBES!r}); from sgtop_probes.attach.tracer import main; main()"
        before = Path(f"/proc/{t.pid}/maps").read_text()
        out = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            input=json.dumps(request).encode() + b"\n" + (page.source + page.blob)[:-missing],
            capture_output=True,
            timeout=60,
        )
        assert "before the whole agent was handed over" in json.loads(out.stdout)["error"]
        assert Path(f"/proc/{t.pid}/maps").read_text() == before
        rig.attach(t).close()
        assert t.end()["errors"] == 0


# --- payloads that go wrong -------------------------------------------------------------------------


def broken_agent(folder: Path, boot: str) -> Path:
    package = folder / "sgtop_agent"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "boot.py").write_text(boot)
    return package


@pytest.mark.parametrize(
    ("boot", "says"),
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("def start(opts):\n    raise RuntimeError('no')\n", "RuntimeError: no"),
        ("import no_such_module_here\n", "ModuleNotFoundError"),
        ("x = 1\n", "AttributeError"),
    ],
)
def test_agent_that_does_not_start(tmp_path: Path, boot: str, says: str) -> None:
    with rig.target("objects") as t:
        error = refused(t, package=broken_agent(tmp_path, boot))
        assert says in error.why
        time.sleep(1.3)  # the page stays a second for the message, then goes
        report = t.end()
    assert report["modules"] == []
    assert report["finders"] == 0
    assert report["errors"] == 0


def test_damaged_on_the_way() -> None:
    with rig.target("quiet") as t:
        agent = payload.build(rig.tiny_agent(), sys.version_info[:2])
        opts = {"way": "pending-call", "token": "t", "rendezvous": "pair", "nonce": "0000", "dir": None, "nvtx": False}
        page = payload.for_page(agent, opts)
        damaged = page.blob[:-1] + bytes([page.blob[-1] ^ 1])
        queued = tracer.run(t.pid, page.source, damaged)
        from sgtop_probes.attach import memory

        def says() -> str:
            return memory.read(t.pid, queued.page[0] + page.status_at, pending.STATUS_SIZE)[2:].decode(
                "ascii", "replace"
            )

        rig.wait_for(lambda: "arrived damaged" in says())
        assert t.end()["modules"] == []


def test_agent_with_newer_grammar_is_refused_here(tmp_path: Path) -> None:
    """It would fail in a server on Python 3.10; the check does not need one."""
    with pytest.raises(SyntaxError):
        payload.build(broken_agent(tmp_path, "type X = int\n"), (3, 11))


def test_not_python() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        t = rig.Target(child)  # type: ignore[arg-type]
        error = refused(t)
        assert error.kind == "unsupported"
        assert "no CPython symbols" in error.why
    finally:
        child.kill()
        child.wait()


def test_server_that_still_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put into it, not even a call that would find no event loop; until it runs."""
    with rig.target("quiet") as t:
        starting = RankProcess("TP0", t.pid, state="starting")
        with pytest.raises(AttachError, match="still starting") as caught:
            open_rank(starting, options=AttachOptions(package=rig.tiny_agent()))
        assert caught.value.kind == "starting"
        assert caught.value.exit_code == 6
        now = discovery.Server(
            pid=1, port=1, host="", state="running", ranks=(RankProcess("TP0", t.pid),), helpers=(), args=LaunchArgs(),
            uid=0, container=None, own_network=True,
        )  # fmt: skip
        monkeypatch.setattr(ladder, "find_servers", lambda: [now])
        open_rank(starting, options=AttachOptions(package=rig.tiny_agent())).close()
        t.end()


def test_rank_on_another_host() -> None:
    with pytest.raises(AttachError, match="not on this host"):
        open_rank(RankProcess("TP3", None, state="elsewhere"))


def test_process_that_has_ended() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    error = refused(rig.Target(child))  # type: ignore[arg-type]
    assert error.kind == "gone"


def test_a_python_that_cannot_be_started_again_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unprivileged user whose Python stands in a home that is closed to them."""
    with rig.target("quiet") as t:
        monkeypatch.setattr(sys, "executable", "/home/somebody/else/python3")
        with pytest.raises(AttachError, match="tracer child cannot be started: /home/somebody/else/python3") as caught:
            rig.attach(t, ways=("pending-call",))
        assert caught.value.kind == "failed"
        t.end()
