"""Victims and competitors to measure: real processes, pinned, with names of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sgtop_probes.sched.cgroup import memberships
from sgtop_probes.sched.types import COLUMNS, KINDS, SchedBatch, SchedSource

_NAME = """
import ctypes, os, sys, time, threading
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
cpus = {int(c) for c in sys.argv[2].split(",")}
os.sched_setaffinity(0, cpus)
print("ready", os.getpid(), flush=True)
"""
BUSY = _NAME + "while True: pass\n"
SLEEPY = _NAME + "while True:\n    for _ in range(2000): pass\n    time.sleep(0.0005)\n"
BURST = _NAME + (
    "while True:\n    end = time.monotonic() + 0.3\n    while time.monotonic() < end: pass\n    time.sleep(1.7)\n"
)
SWITCHY = (
    _NAME
    + """
r, w = os.pipe(); r2, w2 = os.pipe()
if os.fork() == 0:
    while True: os.read(r, 1); os.write(w2, b"x")
while True: os.write(w, b"x"); os.read(r2, 1)
"""
)
PACED = (
    _NAME
    + """
r, w = os.pipe(); r2, w2 = os.pipe()
if os.fork() == 0:
    while True: os.read(r, 1); os.write(w2, b"x")
begin, trips = time.monotonic(), 0
while True:
    while trips < (time.monotonic() - begin) * 12500: os.write(w, b"x"); os.read(r2, 1); trips += 1
    time.sleep(0.002)
"""
)
"""25,000 switches a second on its CPU, however fast that is: two a round trip."""
THREADS = (
    _NAME
    + """
def spin():
    end = time.monotonic() + 1.0
    while time.monotonic() < end: pass
time.sleep(1.0)
while True:
    t = threading.Thread(target=spin); t.start(); t.join()
"""
)


class Process:
    """A process in a session of its own, gone at the end of the block."""

    def __init__(self, code: str, name: str, cpus: str, prefix: Sequence[str] = (), *, stranger: bool = False) -> None:
        """``stranger``: no child of ours (else it counts as one of sgtop's), and louder than the rest of the host."""
        self.name = name
        if stranger:
            prefix = ("setsid", "--fork", *prefix)
        self.child = subprocess.Popen(
            [*prefix, sys.executable, "-I", "-S", "-c", code, name, cpus],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.child.stdout is not None
        ready, pid = self.child.stdout.readline().split()
        assert ready == b"ready"
        self.child.stdout.close()
        self.pid = int(pid)
        if stranger:
            # Sessions share a CPU as groups (autogroup); only root may make one weigh more.
            with contextlib.suppress(OSError):
                Path(f"/proc/{self.pid}/autogroup").write_text("-10")

    def stop(self) -> None:
        for group in {self.pid, self.child.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.child.wait()


@contextlib.contextmanager
def running(
    code: str, name: str, cpus: str, prefix: Sequence[str] = (), *, stranger: bool = False
) -> Iterator[Process]:
    p = Process(code, name, cpus, prefix, stranger=stranger)
    try:
        yield p
    finally:
        p.stop()


def collect(source: SchedSource, seconds: float, every: float = 0.1) -> list[SchedBatch]:
    """Poll for a while, as a session does; the last poll comes late enough to hold everything of the time."""
    out, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        source.wait(min(every, max(0.0, end - time.monotonic())))
        out.append(source.poll())
    time.sleep(0.005)
    out.append(source.poll())
    return out


def rows(batches: Sequence[SchedBatch]) -> list[dict[str, int | str]]:
    """All rows as maps, kind and comm in words."""
    out: list[dict[str, int | str]] = []
    for b in batches:
        for i in range(len(b)):
            r: dict[str, int | str] = {c: getattr(b, c)[i] for c in COLUMNS}
            r["kind"] = KINDS[b.kind[i]]
            r["who"] = b.comms[b.who_comm[i]]
            out.append(r)
    return out


def within(a: float, b: float, share: float, floor: float = 0.0) -> bool:
    """Whether two figures agree to a share of the larger one, or to ``floor`` in their own unit."""
    return abs(a - b) <= max(share * max(abs(a), abs(b)), floor)


@contextlib.contextmanager
def quota(pid: int, cpus: float) -> Iterator[None]:
    """A real quota on one process: version 1 or 2, whichever governs the CPU here."""
    name = f"sgtop-test-{os.getpid()}"
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    base = v1 if (v1 / "cpu.cfs_quota_us").exists() or (v1 / "cpu.shares").exists() else v2
    folder = base / name
    try:
        folder.mkdir()
    except OSError as e:
        pytest.skip(f"no cgroup can be made here: {e}")
    home = Path(f"/proc/{pid}/cgroup").read_text()
    back = memberships(home).get(1 if base == v1 else 2, "/")
    try:
        try:
            if base == v1:
                (folder / "cpu.cfs_quota_us").write_text(str(int(cpus * 100_000)))
            else:
                if "cpu" not in (folder / "cgroup.controllers").read_text().split():
                    pytest.skip("the cpu controller is not delegated to new cgroups here")
                (folder / "cpu.max").write_text(f"{int(cpus * 100_000)} 100000")
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError as e:
            pytest.skip(f"no quota can be set here: {e}")
        yield
    finally:
        with contextlib.suppress(OSError):
            (base / back.lstrip("/") / "cgroup.procs").write_text(str(pid))
        for _ in range(100):
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.05)
