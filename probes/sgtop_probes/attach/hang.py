"""The verdict on a process whose main thread did not come back to Python in time: what it does instead, in words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import procfs

# Numbers: x86-64 (arch/x86/entry/syscalls/syscall_64.tbl), generic (include/uapi/asm-generic/unistd.h).
_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 23: "select", 35: "nanosleep", 44: "sendto", 45: "recvfrom",
        47: "recvmsg", 61: "wait4", 202: "futex", 219: "restart_syscall", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid",
        270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 449: "futex_waitv",
    },
    "aarch64": {
        22: "epoll_pwait", 29: "ioctl", 63: "read", 64: "write", 72: "pselect6", 73: "ppoll", 95: "waitid",
        98: "futex", 101: "nanosleep", 128: "restart_syscall", 115: "clock_nanosleep", 206: "sendto",
        207: "recvfrom", 212: "recvmsg",
        260: "wait4", 449: "futex_waitv",
    },
}  # fmt: skip

_MEANING = {
    "futex": "waiting for a lock or for another thread",
    "ioctl": "inside a driver call",
    "nanosleep": "sleeping",
    "clock_nanosleep": "sleeping",
    "wait4": "waiting for a child process",
    "waitid": "waiting for a child process",
}

_SLEEPS_IN = {
    "futex": "futex",
    "ep_poll": "epoll_wait",
    "do_epoll": "epoll_wait",
    "poll_schedule": "poll",
    "do_poll": "poll",
    "hrtimer_nanosleep": "nanosleep",
    "do_nanosleep": "nanosleep",
}
"""Start of a kernel function (wchan) → the call that sleeps there: a wait that a stop interrupted shows as
restart_syscall afterwards."""


@dataclass(frozen=True)
class Verdict:
    """``hung``: it has shown no sign of life at all; else it works, but not in Python."""

    text: str
    hung: bool


class Watch:
    """Looks at a main thread from now on. ``clock`` in seconds."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self._since = clock()
        self._first = procfs.look(pid)

    def again(self) -> None:
        """Count from here: the thread was stopped by us, which is no sign of life of its own."""
        self._first = procfs.look(self._pid)

    def verdict(self) -> Verdict:
        """What it has been doing since this watch began."""
        now, first = procfs.look(self._pid), self._first
        seconds = self._clock() - self._since
        if now is None or first is None or now.state in "ZX":
            return Verdict("the process has ended", True)
        if now.state == "T":
            return Verdict("the process is stopped (state T): `kill -CONT` lets it go on", True)
        if now.state == "t":
            return Verdict("another tracer holds it stopped (state t)", True)
        head = f"main thread not in Python for {seconds:.0f} s"
        ticks = (now.cpu_ticks - first.cpu_ticks) / os.sysconf("SC_CLK_TCK")
        if now.state == "D":
            return Verdict(f"{head}: uninterruptible sleep in the kernel, in {now.wchan or 'an unknown place'}", True)
        where = _where(now)
        if now.switches == first.switches and ticks == 0:
            return Verdict(f"{head}: asleep in {where} all the time", True)
        if seconds > 0 and ticks >= 0.5 * seconds:
            return Verdict(f"{head}: it computes in native code ({ticks / seconds:.0%} of a CPU)", False)
        return Verdict(f"{head}: {where}, {now.switches - first.switches} switches, {ticks:.1f} s of CPU", False)


def _where(now: procfs.ThreadLook) -> str:
    name = _CALLS.get(os.uname().machine, {}).get(now.syscall if now.syscall is not None else -1)
    if name == "restart_syscall":
        name = next((call for start, call in _SLEEPS_IN.items() if now.wchan.startswith(start)), name)
    if name:
        meaning = f" ({_MEANING[name]})" if name in _MEANING else ""
        return f"{name}{meaning}"
    if now.syscall is not None:
        return f"system call {now.syscall}"
    return now.wchan or "native code"


def at_once(pid: int) -> Verdict | None:
    """A verdict that needs no waiting: ended, stopped, or traced; None when there is none."""
    state = procfs.state(pid)
    if state in (None, "Z", "X", "T", "t"):
        return Watch(pid).verdict()
    return None
