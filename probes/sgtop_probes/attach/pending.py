"""Queue Python source in a running CPython, so that its main thread runs it between two byte codes.

Remote ``mmap``, write the source there, remote ``Py_AddPendingCall(PyRun_SimpleString, source)``, put everything back.
No GIL, no malloc, no dlopen, no code page. Runs in the tracer child.

**Which thread is borrowed.** Any thread can queue the call; only the main one runs it. A helper thread that sleeps in a
futex is the best: it holds no lock of the interpreter, its system call restarts by itself, and the scheduler's main
thread is not stopped at all. SGLang's schedulers have dozens (gloo, ZMQ, CUDA). Without one it is the main thread.

**Why a call that takes too long is not simply undone.** Inside ``Py_AddPendingCall`` there is a lock. Undoing a thread
that has just taken it would leave it locked for ever, and the main thread with it. So, after 50 ms: not entered yet, or
(until 3.12) asleep waiting for the lock: undone and tried again. In user code: it gets more time. Asleep on 3.13 and
later: the wait is an entry in CPython's parking lot that must not vanish; it gets more time, on a stack of our own.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from . import interpreter, memory, ptrace
from .ptrace import CallTrouble, TraceError

CALL_TIMEOUT_S = 0.05
PATIENCE_S = 2.0
STACK = 32 * 1024
PLACE = b"@PAGE-ADDRESS-HERE"
DEADLINE = b"@DEADLINE-NS-GOES-"
"""Stand in the source where the page's address and the deadline go; those take the same number of characters."""
STATUS_SIZE = 256


@dataclass(frozen=True)
class Page:
    """What goes into the target: source, a status area, the agent's bytes, and a stack for one call.

    Without source it is a nudge: the call only makes the main thread look at its queue, and the page goes at once.
    """

    source: bytes
    blob: bytes

    @property
    def status_at(self) -> int:
        return (len(self.source) + 1 + 15) & ~15

    @property
    def blob_at(self) -> int:
        return self.status_at + STATUS_SIZE

    @property
    def size(self) -> int:
        return (self.blob_at + len(self.blob) + STACK + 4095) & ~4095

    def content(self, address: int, deadline_ns: int) -> bytes:
        """Bytes for the page at ``address``; the rest of it stays zero. ``deadline_ns``: by the target's clock."""
        source = self.source.replace(PLACE, f"{address:#0{len(PLACE)}x}".encode())
        source = source.replace(DEADLINE, f"{deadline_ns:#0{len(DEADLINE)}x}".encode())
        return source.ljust(self.blob_at, b"\0") + self.blob


@dataclass(frozen=True)
class Queued:
    """The call is queued; ``stop_us`` is how long the borrowed thread stood still, ``deadline_ns`` by our clock."""

    page: tuple[int, int]
    tid: int
    stop_us: float
    deadline_ns: int
    attempts: int
    python: tuple[int, int]


def sleepers(pid: int, limit: int = 3) -> list[int]:
    """Helper threads that sleep in a futex, those that ran least first."""
    futex = ptrace.FUTEX_CALLS.get(os.uname().machine, ())
    found = []
    for name in os.listdir(f"/proc/{pid}/task"):
        tid = int(name)
        if tid == pid:
            continue
        try:
            with open(f"/proc/{pid}/task/{tid}/syscall") as f:
                if f.read().split(None, 1)[0] not in {str(n) for n in futex}:
                    continue
            with open(f"/proc/{pid}/task/{tid}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
        except (OSError, IndexError):
            continue
        if fields[0] == "S" and _tracer(pid, tid) == "0":
            found.append((int(fields[11]) + int(fields[12]), tid))
    return [tid for _cpu, tid in sorted(found)[:limit]]


def _tracer(pid: int, tid: int) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/status") as f:
            return next((line.split()[1] for line in f if line.startswith("TracerPid:")), "0")
    except OSError:
        return "gone"


def refuse(pid: int) -> None:
    """Look for what makes a call unsafe.

    Raises:
        TraceError: another tracer, user shadow stacks, SIGSEGV ignored, stopped, a zombie.
    """
    fields = {}
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            key, _, value = line.partition(":")
            fields[key] = value.strip()
    state = fields.get("State", "?")[0]
    if state in "ZX":
        raise TraceError("the process has ended and waits for its parent (zombie)", "gone")
    if state == "T":
        raise TraceError("the process is stopped by a signal (state T)", "hung")
    if fields.get("TracerPid", "0") != "0" or state == "t":
        raise TraceError(f"process {fields.get('TracerPid', '?')} traces it (strace, gdb, py-spy, cuda-gdb)", "traced")
    if "shstk" in fields.get("x86_Thread_features", ""):
        raise TraceError("it runs with user shadow stacks, which a borrowed call would violate", "unsupported")
    if int(fields.get("SigIgn", "0"), 16) >> 10 & 1:
        raise TraceError("it ignores SIGSEGV, which ends a borrowed call", "unsupported")


@dataclass(frozen=True)
class Life:
    """How long a queued call is good for, from the moment that it is queued, and what the target's clock is ahead."""

    seconds: float = 2.0
    offset_ns: int = 0


def queue(pid: int, page: Page, thread: str = "auto", life: Life = Life(), attempts: int = 5) -> Queued:
    """Queue ``page.source`` in process ``pid``. ``thread``: auto, main, or helper (never the main one).

    Raises:
        TraceError: in words. interpreter.NoInterpreter: not CPython. OSError: no permission, no such process.
    """
    python = interpreter.inspect(pid)
    trouble = TraceError("no thread could be borrowed")
    for attempt in range(1, attempts + 1):
        try:
            refuse(pid)
            helpers = [] if thread == "main" else sleepers(pid)
            for tid in helpers + ([pid] if thread != "helper" else []):
                done = _once(pid, tid, python, page, life, attempt)
                if isinstance(done, Queued):
                    return done
                trouble = TraceError(done)
        except TraceError as e:
            if e.kind != "traced":
                raise
            trouble = e  # another sgtop's tracer, perhaps: gone in a millisecond
        time.sleep(0.01 * attempt)
    raise TraceError(f"{trouble} (tried {attempts} times)", trouble.kind)


def _once(pid: int, tid: int, python: interpreter.Interpreter, page: Page, life: Life, attempt: int) -> Queued | str:
    """One borrowed thread, one try; a reason in words when it is worth another."""
    tracee = ptrace.Tracee(pid, tid)
    start = time.perf_counter_ns()
    try:
        try:
            tracee.stop()
        except (ProcessLookupError, TraceError) as e:
            if tid == pid:
                raise
            return f"a helper thread could not be borrowed: {e}"  # it ended; the process may live on
        if tid != pid and tracee.system_call() not in ptrace.FUTEX_CALLS[tracee.abi.name]:
            return "a helper thread woke up"
        address = tracee.call(python.mmap, (0, page.size, 3, 0x22, _MINUS_ONE, 0), CALL_TIMEOUT_S)
        if isinstance(address, CallTrouble):
            tracee.abandon()
            return "mmap took longer than 50 ms"
        if -4096 < address < 0:
            raise TraceError(f"no memory for the agent: {os.strerror(-address)}")
        deadline = time.monotonic_ns() + int(life.seconds * 1e9)
        memory.write(pid, address, page.content(address, deadline + life.offset_ns))
        # PyErr_CheckSignals does what the main thread does anyway between bytecodes, takes nothing and returns 0.
        what = (python.run_string, address) if page.source else (python.check_signals, 0)
        result = tracee.call(python.add_pending_call, what, CALL_TIMEOUT_S, stack=address + page.size)
        end = time.monotonic() + PATIENCE_S
        while isinstance(result, CallTrouble):
            parked = result.sleeping and python.version >= (3, 13)
            if not result.entered or (result.sleeping and not parked) or time.monotonic() > end:
                # Not unmapped: it may hold the stack of a parked wait. 64 KB, and only where something is badly wrong.
                tracee.abandon()
                return "Py_AddPendingCall took longer than 50 ms"
            result = tracee.resume(python.add_pending_call, CALL_TIMEOUT_S)
        full = result & 0xFFFFFFFF
        if full or not page.source:
            unmapped = tracee.call(python.munmap, (address, page.size), CALL_TIMEOUT_S)
            if isinstance(unmapped, CallTrouble):
                tracee.abandon()
        if full:
            return "the interpreter's queue of pending calls is full: its main thread has not run Python for long"
    finally:
        tracee.release()
        stop_us = (time.perf_counter_ns() - start) / 1e3
    if page.source:
        # Only now may the target unmap the page, whose end was the stack of the call.
        memory.write(pid, address + page.status_at + 1, b"\1")
    return Queued((address, page.size), tid, stop_us, deadline, attempt, python.version)


_MINUS_ONE = (1 << 64) - 1
