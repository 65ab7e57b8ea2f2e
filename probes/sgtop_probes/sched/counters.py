"""A thread's counters from /proc: readable in any container, by any user (unless /proc hides other users)."""

from __future__ import annotations

import os

from .types import ThreadCounters


def read(path: str) -> str | None:
    """A small file's text, or None when it is gone or may not be read."""
    try:
        with open(path, "rb") as f:
            return f.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


class ProcFile:
    """A file of procfs or sysfs that is read again and again: opened once, a third of the cost a reading."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def read(self) -> str | None:
        """Its text now, or None when it is gone or may not be read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, 8192, 0).decode("utf-8", "replace")
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def parse_schedstat(text: str | None) -> tuple[int, int, int] | None:
    """(ns on a CPU, ns waiting in a run queue, slices), or None."""
    try:
        run, wait, slices = map(int, (text or "").split())
    except ValueError:
        return None
    return run, wait, slices


def schedstat(pid: int, tid: int, proc: str = "/proc") -> tuple[int, int, int] | None:
    """(ns on a CPU, ns waiting in a run queue, slices), or None."""
    return parse_schedstat(read(f"{proc}/{pid}/task/{tid}/schedstat"))


def context_switches(pid: int, tid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """(voluntary, involuntary), or None."""
    return parse_switches(read(f"{proc}/{pid}/task/{tid}/status"))


def parse_switches(text: str | None) -> tuple[int, int] | None:
    """(voluntary, involuntary) from a ``status`` file, or None."""
    found: dict[str, int] = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name.endswith("ctxt_switches"):
            found[name] = int(value)
    try:
        return found["voluntary_ctxt_switches"], found["nonvoluntary_ctxt_switches"]
    except KeyError:
        return None


def stat(pid: int, tid: int, proc: str = "/proc") -> tuple[str, str, int, int] | None:
    """(comm, state letter, ticks of CPU used, CPU it ran on last), or None. A tick is 1/SC_CLK_TCK s."""
    return parse_stat(read(f"{proc}/{pid}/task/{tid}/stat"))


def parse_stat(text: str | None) -> tuple[str, str, int, int] | None:
    """As ``stat``, from the file's text."""
    if not text or ")" not in text:
        return None
    head, _, rest = text.rpartition(")")
    f = rest.split()
    try:
        return head.partition("(")[2], f[0], int(f[11]) + int(f[12]), int(f[36])
    except (IndexError, ValueError):
        return None


def migrations(pid: int, tid: int, proc: str = "/proc") -> int | None:
    """Times the thread moved to another CPU (``se.nr_migrations``), or None where the kernel does not say."""
    for line in (read(f"{proc}/{pid}/task/{tid}/sched") or "").splitlines():
        if line.startswith("se.nr_migrations"):
            return int(line.rpartition(":")[2])
    return None


class ThreadReader:
    """Reads a thread's counters; the dearer ones at most once a second."""

    SLOW_NS = 1_000_000_000

    def __init__(self, pid: int, tid: int, proc: str = "/proc") -> None:
        self.pid, self.tid = pid, tid
        self._proc = proc
        base = f"{proc}/{pid}/task/{tid}"
        self._stat, self._status, self.schedstat = (ProcFile(f"{base}/{n}") for n in ("stat", "status", "schedstat"))
        self._slow_at = 0
        self._migrations: int | None = None
        self._switches: tuple[int, int] | None = None
        self._counts_moves = False
        self._cpu: int | None = None

    def read(self, now: int) -> ThreadCounters | None:
        """The counters at ``now`` (ns), or None when the thread is gone."""
        st = parse_stat(self._stat.read())
        if st is None:
            return None
        _comm, state, _ticks, cpu = st
        if self._counts_moves and self._cpu is not None and cpu != self._cpu:
            self._migrations = (self._migrations or 0) + 1
        self._cpu = cpu
        if now >= self._slow_at:
            self._slow_at = now + self.SLOW_NS
            if not self._counts_moves:
                got = migrations(self.pid, self.tid, self._proc)
                self._counts_moves = got is None
                self._migrations = 0 if got is None else got
        self._switches = parse_switches(self._status.read())
        ss = parse_schedstat(self.schedstat.read())
        return ThreadCounters(
            pid=self.pid,
            tid=self.tid,
            time=now,
            run_ns=ss[0] if ss else None,
            wait_ns=ss[1] if ss else None,
            slices=ss[2] if ss else None,
            voluntary=self._switches[0] if self._switches else None,
            involuntary=self._switches[1] if self._switches else None,
            migrations=self._migrations,
            cpu=cpu,
            state=state,
        )


TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
