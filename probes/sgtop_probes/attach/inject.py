"""Put an agent into a process and take its socket: PEP 768 or pending call, then the socket pair's other end.

Nothing of this outlives its deadline: an agent that was not greeted in time undoes itself, a call that runs late does
nothing.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import client, permissions, procfs
from ..client import Connection
from ..errors import AttachError
from . import hang, interpreter, knock, memory, payload, pending, pep768, tracer

if TYPE_CHECKING:
    from .ladder import AttachOptions

DEADLINE_S = 2.0
NUDGE_AFTER_S = 0.06
POKE_AFTER_S = 0.03


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
        connection = _try(pid, way, python, options, end, watch, clock)
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
    watch: hang.Watch,
    clock: Callable[[], float],
) -> Connection | None:
    """One injection; None when the main thread has not come to it by the deadline."""
    agent = payload.build(options.package or payload.agent_folder(), python.version)
    seconds = max(0.2, min(DEADLINE_S, end - clock()))
    life = pending.Life(seconds, procfs.monotonic_offset_ns(pid))
    meeting = knock.prepare(pid)
    opts: dict[str, Any] = {"way": way, "token": options.token, "nvtx": options.nvtx, **meeting.opts}
    problem: Callable[[], str | None]
    nudge: float | None = None
    handed: pep768.Handed | None = None
    try:
        if way == "pep768":
            deadline = clock() + seconds
            theirs = time.monotonic_ns() + int(seconds * 1e9) + life.offset_ns
            handed = pep768.execute(pid, python, agent, opts, theirs)
            problem = handed.problem
        else:
            page = payload.for_page(agent, opts)
            queued = trace(pid, page.source, page.blob, options.thread, life)
            # Counted from when it was queued: on a loaded host the tracer itself may have taken long.
            deadline = clock() + (queued.deadline_ns - time.monotonic_ns()) / 1e9
            problem = partial(_page_problem, pid, queued.page[0] + page.status_at)
            if queued.tid != pid and python.version < (3, 13):
                nudge = clock() + NUDGE_AFTER_S
            watch.again()
        sock = _await(pid, meeting, deadline, nudge, problem, options.poke, clock)
        if sock is None:
            return None
        return client.greet(sock, token=options.token, extra={"nvtx": options.nvtx}, clock=clock)
    finally:
        if handed is not None:
            handed.clean()
        meeting.clean()


def trace(pid: int, source: bytes, blob: bytes, thread: str, life: pending.Life | None = None) -> pending.Queued:
    """Queue ``source``, from the tracer child.

    Raises:
        AttachError: in words.
    """
    try:
        return tracer.run(pid, source, blob, thread, life)
    except tracer.TracerFailed as e:
        if e.errno:
            raise refused(pid, e.errno, str(e)) from None
        mend = "end the other tracer, then try again" if e.kind == "traced" else ""
        raise AttachError(f"process {pid} cannot take an agent", str(e), mend, kind=e.kind) from None


def _await(
    pid: int,
    meeting: knock.Knock,
    deadline: float,
    nudge: float | None,
    problem: Callable[[], str | None],
    poke: Callable[[int], None] | None,
    clock: Callable[[], float],
) -> socket.socket | None:
    """The agent's socket, None at the deadline.

    ``nudge``: when to make the main thread look at its queue. Until 3.12 a call that another thread queued is noticed
    when the main thread next takes the GIL; one that runs and never lets go of it (pure Python) needs the flag that
    only a call from the main thread itself sets. ``poke`` is called once, for a main thread that sleeps in a poll.
    """
    pause, poke_at = 0.0005, clock() + POKE_AFTER_S
    while clock() < deadline:
        sock = meeting.poll()
        if sock is not None:
            return sock
        text = problem()
        if text:
            raise AttachError("the agent could not start in the server", text)
        if not procfs.alive(pid):
            raise AttachError(f"process {pid} has ended", kind="gone")
        if nudge is not None and clock() >= nudge and procfs.state(pid) == "R":
            nudge = None
            trace(pid, b"", b"", "main")
        if poke is not None and clock() >= poke_at and procfs.state(pid) == "S":
            threading.Thread(target=poke, args=(pid,), name="sgtop-poke", daemon=True).start()
            poke = None
        time.sleep(pause)
        pause = min(0.005, pause * 1.2)
    return None


def _page_problem(pid: int, address: int) -> str | None:
    """What the target's loader reported in the page's status area, if it failed."""
    try:
        status = memory.read(pid, address, pending.STATUS_SIZE)
    except OSError:
        return None  # the page has gone already: the agent is on its way
    return status[2:].partition(b"\0")[0].decode("utf-8", "replace") if status[0] == payload.FAILED else None
