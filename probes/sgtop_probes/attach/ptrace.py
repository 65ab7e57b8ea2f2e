"""One thread of another process, stopped for a moment: registers, signal mask, and calls by registers only.

x86-64 is what all tests run on; aarch64 follows the kernel's documentation and the same tests pass through it
unchanged, but no such machine was at hand. Standard library only; runs in the tracer child (``tracer.py``), which has
one thread and SIGCHLD blocked, so that waiting for a stop is ``sigtimedwait`` and no signal handler is involved.

A call returns to address 0, where nothing is mapped: the fault is reported to the tracer first, which drops it and puts
everything back. No code is written, no instruction replaced. While a call runs all signals but SIGSEGV are
blocked, so that no handler of the target runs on the borrowed stack; they are delivered afterwards.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import time
from dataclasses import dataclass

CONT, DETACH, GETREGSET, SETREGSET, SEIZE, INTERRUPT = 7, 17, 0x4204, 0x4205, 0x4206, 0x4207
GETSIGMASK, SETSIGMASK = 0x420A, 0x420B
EVENT_STOP = 128
NT_PRSTATUS, NT_FPREGSET, NT_X86_XSTATE, NT_ARM_SVE = 1, 2, 0x202, 0x405
WALL = 0x40000000
FUTEX_CALLS = {"x86_64": (202, 449), "aarch64": (98, 449)}
_MASK64 = (1 << 64) - 1
_SVC = 0xD4000001

_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class TraceError(Exception):
    """The thread cannot be used; ``kind`` is one of AttachError's kinds."""

    def __init__(self, text: str, kind: str = "failed") -> None:
        super().__init__(text)
        self.kind = kind


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def request(number: int, tid: int, addr: int = 0, data: int = 0) -> int:
    """ptrace(2).

    Raises:
        OSError: what the kernel said.
    """
    ctypes.set_errno(0)
    result = int(_ptrace(number, tid, addr, data))
    if result == -1 and ctypes.get_errno():
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"ptrace({number:#x}) of thread {tid}")
    return result


def _get(tid: int, kind: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    iov = _IoVec(ctypes.addressof(buffer), size)
    request(GETREGSET, tid, kind, ctypes.addressof(iov))
    return buffer.raw[: iov.len]


def _set(tid: int, kind: int, raw: bytes) -> None:
    buffer = ctypes.create_string_buffer(raw, len(raw))
    iov = _IoVec(ctypes.addressof(buffer), len(raw))
    request(SETREGSET, tid, kind, ctypes.addressof(iov))


@dataclass(frozen=True)
class Abi:
    """Where things stand in NT_PRSTATUS, as indices of 64-bit words."""

    name: str
    pc: int
    sp: int
    result: int
    arguments: tuple[int, ...]
    red_zone: int


X86_64 = Abi("x86_64", 16, 19, 10, (14, 13, 12, 11, 9, 8), 128)
AARCH64 = Abi("aarch64", 32, 31, 0, tuple(range(8)), 0)
ABIS = {"x86_64": X86_64, "aarch64": AARCH64}


def word(registers: bytes, index: int) -> int:
    """Word ``index`` of a register set, unsigned."""
    return int(struct.unpack_from("<Q", registers, index * 8)[0])


def call_frame(abi: Abi, saved: bytes, function: int, arguments: tuple[int, ...], stack: int) -> tuple[bytes, int]:
    """(registers for the call, address where the return address 0 must stand; 0 if it is in a register).

    ``stack``: top of the stack to use, 0 for the thread's own.
    """
    registers = bytearray(saved)

    def put(index: int, value: int) -> None:
        struct.pack_into("<Q", registers, index * 8, value & _MASK64)

    top = stack or word(saved, abi.sp) - abi.red_zone
    for index, value in zip(abi.arguments, arguments, strict=False):
        put(index, value)
    put(abi.pc, function)
    if abi is X86_64:
        sp = ((top - 64) & ~15) - 8  # as after a call instruction
        put(abi.sp, sp)
        put(10, 0)  # rax: number of vector registers of a variadic call
        put(15, _MASK64)  # orig_rax = -1: not in a system call, so the kernel restarts none on this frame
        put(18, word(saved, 18) & ~0x500)  # direction and trap flags clear, as the ABI wants at entry
        return bytes(registers), sp
    put(abi.sp, (top - 256) & ~15)
    put(30, 0)  # link register
    put(33, word(saved, 33) & ~0xC00)  # pstate: no branch-target type left over
    return bytes(registers), 0


class Tracee:
    """A thread between ``stop`` and ``release``. Use it as short as possible."""

    def __init__(self, pid: int, tid: int) -> None:
        abi = ABIS.get(platform.machine())
        if abi is None:
            raise TraceError(f"attaching is not built for {platform.machine()}", "unsupported")
        self.pid, self.tid, self.abi = pid, tid, abi
        self._seized = False
        self._mask = 0
        self._borrowed = False
        self._deferred = 0  # a signal that cannot be blocked and came while a call ran; delivered at release
        self._registers = b""
        self._vectors = b""
        self._vector_kind = NT_X86_XSTATE if abi is X86_64 else NT_ARM_SVE

    # --- stopping and letting go ------------------------------------------------------------------

    def stop(self, timeout: float = 1.0, patience: float = 4.0) -> None:
        """Stop the thread and save what it was doing.

        ``patience``: seconds for a thread that could run and gets no CPU; it is stopped the moment it does.

        Raises:
            OSError: no permission (EPERM), no such thread. TraceError: it does not stop, is stopped already, or ends.
        """
        request(SEIZE, self.tid)
        self._seized = True
        request(INTERRUPT, self.tid)
        start = time.monotonic()
        end = start + timeout
        while True:
            stop = self._wait(end - time.monotonic())
            if stop is None:
                state = self._state()
                if state == "R" and end < start + patience:
                    end = start + patience
                    continue
                # It cannot be released while it runs; the kernel releases it when this process ends.
                self._seized = False
                if state == "R":
                    raise TraceError(f"the thread got no CPU for {patience:g} s: the host is overloaded")
                raise TraceError(f"the thread does not stop: it sleeps in the kernel (state {state})", "hung")
            sig, event = stop
            if event == EVENT_STOP and sig == signal.SIGTRAP:
                break
            if event == EVENT_STOP:
                raise TraceError(f"the process is stopped by {signal.Signals(sig).name}", "hung")
            request(CONT, self.tid, 0, sig)  # a signal that was on its way: let it be handled, then stop
        self._registers = _get(self.tid, NT_PRSTATUS, 1024)
        self._vectors = self._get_vectors()
        mask = ctypes.c_uint64()
        request(GETSIGMASK, self.tid, 8, ctypes.addressof(mask))
        self._mask = mask.value

    def _state(self) -> str:
        try:
            with open(f"/proc/{self.pid}/task/{self.tid}/stat") as f:
                return f.read().rpartition(")")[2].split()[0]
        except OSError:
            return "?"

    def _get_vectors(self) -> bytes:
        try:
            return _get(self.tid, self._vector_kind, 32768)
        except OSError:
            if self._vector_kind != NT_ARM_SVE:
                raise
            self._vector_kind = NT_FPREGSET  # a core without SVE
            return _get(self.tid, self._vector_kind, 32768)

    def _set_mask(self, mask: int) -> None:
        value = ctypes.c_uint64(mask)
        request(SETSIGMASK, self.tid, 8, ctypes.addressof(value))

    def release(self) -> None:
        """Put everything back and let the thread run on. Does nothing when it is not held."""
        if not self._seized:
            return
        self._seized = False
        try:
            if self._borrowed:
                self._restore()
                self._set_mask(self._mask)
            request(DETACH, self.tid, 0, self._deferred)
        except ProcessLookupError:
            pass  # it was killed meanwhile: nothing to put back

    def _restore(self) -> None:
        _set(self.tid, NT_PRSTATUS, self._registers)
        _set(self.tid, self._vector_kind, self._vectors)

    def _wait(self, timeout: float) -> tuple[int, int] | None:
        """(signal, event) of the next stop, None when ``timeout`` seconds have passed."""
        end = time.monotonic() + timeout
        while True:
            tid, status = os.waitpid(self.tid, WALL | os.WNOHANG)
            if tid:
                break
            left = end - time.monotonic()
            if left <= 0 or signal.sigtimedwait([signal.SIGCHLD], left) is None:
                tid, status = os.waitpid(self.tid, WALL | os.WNOHANG)
                if tid:
                    break
                return None
        if os.WIFSTOPPED(status):
            return os.WSTOPSIG(status), status >> 16
        self._seized = False
        raise TraceError("the process has ended", "gone")

    # --- calls ------------------------------------------------------------------------------------

    def system_call(self) -> int | None:
        """Number of the system call that the stopped thread is in, None when it is in user code."""
        return self._system_call(self._registers)

    def _system_call(self, registers: bytes) -> int | None:
        if self.abi is X86_64:
            number = word(registers, 15)
            return number if number < 1 << 31 else None
        # The kernel has already stepped back to the svc instruction for the restart.
        from .memory import read

        pc = word(registers, self.abi.pc)
        try:
            (instruction,) = struct.unpack("<I", read(self.pid, pc, 4))
        except OSError:
            return None
        return word(registers, 8) if instruction == _SVC else None

    def call(self, function: int, arguments: tuple[int, ...], timeout: float, stack: int = 0) -> int | CallTrouble:
        """Call ``function(*arguments)`` on the stopped thread.

        Returns the signed result, or a CallTrouble after ``timeout`` seconds; the thread is then stopped again
        *inside* the call, and ``resume`` or ``abandon`` must follow.
        """
        from .memory import write

        registers, return_at = call_frame(self.abi, self._registers, function, arguments, stack)
        if return_at:
            write(self.pid, return_at, bytes(8))
        if not self._borrowed:
            # From here to release() this process must not die; before, the kernel lets a stopped thread go on.
            self._borrowed = True
            self._set_mask(_MASK64 & ~(1 << (signal.SIGSEGV - 1)))
        _set(self.tid, NT_PRSTATUS, registers)
        return self.resume(function, timeout)

    def resume(self, function: int, timeout: float) -> int | CallTrouble:
        """Let a call that took too long go on for another ``timeout`` seconds."""
        request(CONT, self.tid, 0, 0)
        end, interrupted = time.monotonic() + timeout, False
        while True:
            stop = self._wait(end - time.monotonic())
            if stop is None and interrupted:
                self._seized = False
                raise TraceError("the thread does not stop any more", "hung")
            if stop is None:
                request(INTERRUPT, self.tid)
                end, interrupted = time.monotonic() + 5, True
                continue
            sig, event = stop
            registers = _get(self.tid, NT_PRSTATUS, 1024)
            pc = word(registers, self.abi.pc)
            if event == 0 and sig == signal.SIGSEGV:
                self._restore()
                if pc == 0:
                    value = word(registers, self.abi.result)
                    return value - (1 << 64) if value >> 63 else value
                raise TraceError(f"the call faulted at {pc:#x}; it was undone")
            if event == EVENT_STOP and interrupted:
                return CallTrouble(entered=pc != function, sleeping=self._system_call(registers) is not None)
            if event == 0 and sig != signal.SIGTRAP:
                self._deferred = sig  # SIGSTOP: the only kind that cannot be blocked and can be waited for
            request(CONT, self.tid, 0, 0)

    def abandon(self) -> None:
        """Put the registers back in the middle of a call."""
        self._restore()


@dataclass(frozen=True)
class CallTrouble:
    """A call that did not come back in time: where it stood when it was stopped."""

    entered: bool
    """False: its first instruction has not run."""
    sleeping: bool
    """It waits in a system call."""
