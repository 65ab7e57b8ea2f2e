"""Put an agent into a process and take its socket: PEP 768 or pending call, then the socket pair's other end.

Nothing of this outlives its deadline: an agent that was not greeted in time undoes itself, a call that runs late does
nothing.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import client, permissions, procfs
from ..client import Connection
from ..errors import AttachError
from . import hang, interpreter, memory, payload, pending, pep768, pidfd, tracer

if TYPE_CHECKING:
    from .ladder import AttachOptions

DEADLINE_S = 2.0
NUDGE_AFTER_S = 0.06
_NOTHING = b"0\n"


def attach(
    pid: int,
    way: str,
    options: AttachOptions,
    end: float,
    on_event: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Inject by ``way`` (``pep768`` or ``pending-call``) and greet the agent; gives up at ``end`` (in ``clock``).

    Raises:
        AttachError: in words.
    """
    python = inspect(pid)
    if way == "pep768":
        pep768.check(pid, python)
    while True:
        stopped = hang.at_once(pid)
        if stopped:
            kind = "gone" if not procfs.alive(pid) else "traced" if procfs.state(pid) == "t" else "hung"
            raise AttachError(f"process {pid} cannot take an agent now", stopped.text, kind=kind)
        watch = hang.Watch(pid, clock)
        connection = _try(pid, way, python, options, end, clock)
        if connection is not None:
            return connection
        verdict = watch.verdict()
        # Another call would only wait behind the first one. A thread that does not move gets no more of them.
        if verdict.hung or clock() + DEADLINE_S > end:
            kind = "hung" if procfs.alive(pid) else "gone"
            raise AttachError(f"process {pid} does not run the agent", verdict.text, kind=kind)
        on_event(f"process {pid}: {verdict.text}; trying again")


def inspect(pid: int) -> interpreter.Interpreter:
    """The target's interpreter.

    Raises:
        AttachError: no permission, gone, not CPython.
    """
    try:
        return interpreter.inspect(pid)
    except interpreter.NoInterpreter as e:
        raise AttachError(f"process {pid} cannot take an agent", str(e), kind="unsupported") from None
    except OSError as e:
        raise refused(pid, e.errno or 0, str(e)) from None


def refused(pid: int, error: int, text: str) -> AttachError:
    """What an errno of the kernel means for ``pid``."""
    if error in (errno.ESRCH, errno.ENOENT) or not procfs.alive(pid):
        return AttachError(f"process {pid} has ended", kind="gone")
    if error in (errno.EPERM, errno.EACCES):
        traced = procfs.status(pid).get("TracerPid", "0")
        if traced != "0":
            return AttachError(f"process {pid} is being traced", f"by process {traced}", "end it first", kind="traced")
        refusal = permissions.ptrace_refusal(pid)
        return AttachError(f"no permission to look into process {pid}", refusal.why, refusal.mend, kind="permission")
    return AttachError(f"process {pid} cannot take an agent", text)


def _try(
    pid: int,
    way: str,
    python: interpreter.Interpreter,
    options: AttachOptions,
    end: float,
    clock: Callable[[], float],
) -> Connection | None:
    """One injection; None when the main thread has not come to it by the deadline."""
    agent = payload.build(options.package or payload.agent_folder(), python.version)
    seconds = max(0.2, min(DEADLINE_S, end - clock()))
    deadline = time.monotonic_ns() + int(seconds * 1e9)
    nonce = secrets.token_hex(2)
    opts: dict[str, Any] = {
        "way": way,
        "token": options.token,
        "rendezvous": "pair",
        "nonce": nonce,
        "dir": None,
        "nvtx": options.nvtx,
    }
    before = _threads(pid)
    theirs = deadline + procfs.monotonic_offset_ns(pid)
    page: pending.Page | None = None
    queued: pending.Queued | None = None
    handed: pep768.Handed | None = None
    try:
        if way == "pep768":
            handed = pep768.execute(pid, python, agent, opts, theirs)
        else:
            page = payload.for_page(agent, opts, theirs)
            queued = trace(pid, page.source, page.blob, options.thread)
        nudge = None if queued is None or queued.tid == pid or python.version >= (3, 13) else clock() + NUDGE_AFTER_S
        fd = _await_knock(pid, nonce, before, deadline, nudge, page, queued, handed, clock)
    finally:
        if handed is not None:
            handed.clean()
    if fd is None:
        return None
    return client.greet(socket.socket(fileno=fd), token=options.token, extra={"nvtx": options.nvtx}, clock=clock)


def trace(pid: int, source: bytes, blob: bytes, thread: str) -> pending.Queued:
    """Queue ``source``, from the tracer child.

    Raises:
        AttachError: in words.
    """
    try:
        return tracer.run(pid, source, blob, thread)
    except tracer.TracerFailed as e:
        if e.errno:
            raise refused(pid, e.errno, str(e)) from None
        mend = "end the other tracer, then try again" if e.kind == "traced" else ""
        raise AttachError(f"process {pid} cannot take an agent", str(e), mend, kind=e.kind) from None


def _threads(pid: int) -> set[str]:
    try:
        return set(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return set()


def _comm(pid: int, tid: str) -> str:
    return (procfs.read(f"/proc/{pid}/task/{tid}/comm") or "").strip()


def _await_knock(
    pid: int,
    nonce: str,
    before: set[str],
    deadline_ns: int,
    nudge: float | None,
    page: pending.Page | None,
    queued: pending.Queued | None,
    handed: pep768.Handed | None,
    clock: Callable[[], float],
) -> int | None:
    """The socket of the agent with ``nonce``: a new thread called ``sg:FD:NONCE``. None at the deadline."""
    # A running agent that takes us in renames its own thread, so those stay under observation.
    old = {tid for tid in before if not _comm(pid, tid).startswith("sg")}
    pause = 0.0005
    while time.monotonic_ns() < deadline_ns:
        for tid in _threads(pid) - old:
            name = _comm(pid, tid)
            if name.startswith("sg:") and name.endswith(f":{nonce}"):
                try:
                    return pidfd.getfd(pid, int(name.split(":")[1]))
                except OSError as e:
                    raise _no_getfd(pid, e) from None
        problem = _problem(pid, page, queued, handed)
        if problem:
            raise AttachError("the agent could not start in the server", problem)
        if not procfs.alive(pid):
            raise AttachError(f"process {pid} has ended", kind="gone")
        if nudge is not None and clock() >= nudge:
            # Until 3.12 a call queued from another thread is noticed when the main thread next takes the GIL. One that
            # never lets go of it (pure Python) needs the flag that only a call from the main thread itself sets.
            nudge = None
            trace(pid, _NOTHING, b"", "main")
        time.sleep(pause)
        pause = min(0.005, pause * 1.2)
    return None


def _no_getfd(pid: int, e: OSError) -> AttachError:
    if e.errno == errno.ENOSYS:
        return AttachError("the agent's socket cannot be taken", "pidfd_getfd needs Linux 5.6", kind="unsupported")
    if e.errno in (errno.EPERM, errno.EACCES) and procfs.alive(pid):
        return AttachError(
            "the agent's socket cannot be taken",
            "pidfd_getfd is refused, probably by a seccomp filter",
            "Docker: `--cap-add=SYS_PTRACE`, or `--security-opt seccomp=unconfined`",
            kind="permission",
        )
    return refused(pid, e.errno or 0, str(e))


def _problem(
    pid: int, page: pending.Page | None, queued: pending.Queued | None, handed: pep768.Handed | None
) -> str | None:
    """What the target's loader reported, if it failed."""
    if handed is not None:
        return handed.problem()
    if page is None or queued is None:
        return None
    try:
        status = memory.read(pid, queued.page[0] + page.status_at, pending.STATUS_SIZE)
    except OSError:
        return None  # the page has gone already: the agent is on its way to knock
    return status[2:].partition(b"\0")[0].decode("utf-8", "replace") if status[0] == payload.FAILED else None
