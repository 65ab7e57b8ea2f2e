"""CPU time of whole processes (schedulers, tokenizer, detokenizer) and their busiest threads, from /proc."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from .counters import TICKS_PER_S, stat
from .threads import threads_of


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """One thread. ``share`` of one core, 1.0 = a whole one."""

    tid: int
    comm: str
    share: float
    cpu: int


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process over the time between two readings. ``cpu_share``: 1.0 = one core; None at the first reading.

    ``threads`` counts its threads; ``top`` holds the busiest, where they were asked for.
    """

    pid: int
    role: str
    cpu_share: float | None
    rss_bytes: int | None
    threads: int | None
    top: tuple[ThreadUse, ...] = ()


class Processes:
    """Keeps what is needed between readings of some processes."""

    MIN_S = 0.9
    """Shorter slices show the 10 ms tick of the kernel's accounting; the reading before is handed out again."""

    def __init__(self, roles: Mapping[int, str], *, top: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """``roles``: pid → role; ``top``: how many of the busiest threads to list."""
        self._roles = dict(roles)
        self._top = top
        self._clock = clock
        self._ps: dict[int, psutil.Process] = {}
        self._cpu: dict[int, float] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._at: float | None = None
        self._last: tuple[ProcessUse, ...] = ()

    def watch(self, roles: Mapping[int, str]) -> None:
        """Read these from now on; nothing changes where they are the same."""
        if dict(roles) != self._roles:
            self._roles = dict(roles)
            self._at = None

    def read(self) -> tuple[ProcessUse, ...]:
        """One entry a living process, in the order of the roles."""
        now = self._clock()
        elapsed = None if self._at is None else now - self._at
        if elapsed is not None and elapsed < self.MIN_S:
            return self._last
        self._at = now
        out = []
        for pid, role in self._roles.items():
            use = self._one(pid, role, elapsed)
            if use is not None:
                out.append(use)
        self._last = tuple(out)
        return self._last

    def _one(self, pid: int, role: str, elapsed: float | None) -> ProcessUse | None:
        try:
            p = self._ps.get(pid)
            if p is None:
                p = self._ps[pid] = psutil.Process(pid)
            if not p.is_running():  # the pid was given to another process
                raise psutil.NoSuchProcess(pid)
            with p.oneshot():
                times, rss, threads = p.cpu_times(), p.memory_info().rss, p.num_threads()
        except psutil.NoSuchProcess:
            self._ps.pop(pid, None)
            self._cpu.pop(pid, None)
            return None
        except psutil.AccessDenied:
            return ProcessUse(pid, role, None, None, None)
        cpu = times.user + times.system
        before = self._cpu.get(pid)
        self._cpu[pid] = cpu
        share = None if before is None or not elapsed else max(0.0, cpu - before) / elapsed
        return ProcessUse(pid, role, share, rss, threads, self._busiest(pid, elapsed) if self._top else ())

    def _busiest(self, pid: int, elapsed: float | None) -> tuple[ThreadUse, ...]:
        found: list[ThreadUse] = []
        now: dict[tuple[int, int], int] = {}
        for tid in threads_of(pid):
            st = stat(pid, tid)
            if st is None:
                continue
            comm, _state, ticks, cpu = st
            now[(pid, tid)] = ticks
            before = self._threads.get((pid, tid))
            if before is not None and elapsed and ticks > before:
                found.append(ThreadUse(tid, comm, (ticks - before) / TICKS_PER_S / elapsed, cpu))
        self._threads = {**{k: v for k, v in self._threads.items() if k[0] != pid}, **now}
        found.sort(key=lambda t: -t.share)
        return tuple(found[: self._top])
