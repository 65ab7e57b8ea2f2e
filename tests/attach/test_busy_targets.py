"""Injections into fifteen kinds of busy main thread: every one runs, exactly once, and nothing of the target breaks."""

from __future__ import annotations

import random
import sys
import time

import pytest
from sgtop_probes.attach import tracer

from . import rig

COUNT = b"try:\n exec('import __main__;__main__.RUNS+=1')\nexcept BaseException:pass\n"
BLOB = bytes(64 * 1024)  # as large as an agent: what is written into the page is part of the stop
QUICK = ("spin", "objects", "imports", "floats", "mallocs", "mallocs_gil", "dlopens", "dlopens_beside", "scheduler")
SLOW = ("long_c", "long_c_gil", "recv", "epoll", "futex", "nanosleep")
"""Their main thread comes back to Python once or twice a second."""

needs_compiler = pytest.mark.skipif(rig.native() is None, reason="the targets' C part needs a compiler")


def hammer(mode: str, thread: str, times: int, python: list[str] | None = None) -> None:
    dice = random.Random(mode + thread)
    with rig.target(mode, python=python) as t:
        time.sleep(0.2)
        for _ in range(times):
            tracer.run(t.pid, COUNT, BLOB, thread)
            time.sleep(dice.uniform(0, 0.02))
        # On 3.12 and earlier a call queued by a helper thread waits until the main thread next takes the GIL.
        time.sleep(2.0 if mode in SLOW else 0.3)
        report = t.end()
    assert report["runs"] == times
    assert report["errors"] == 0
    assert report["loops"] > 0


@needs_compiler
@pytest.mark.parametrize("thread", ["main", "auto"])
@pytest.mark.parametrize("mode", QUICK)
def test_main_thread_busy(mode: str, thread: str) -> None:
    """Python, C with and without the GIL, malloc, the dynamic loader, imports."""
    hammer(mode, thread, 10)


@needs_compiler
@pytest.mark.parametrize("thread", ["main", "auto"])
@pytest.mark.parametrize("mode", SLOW)
def test_main_thread_waiting(mode: str, thread: str) -> None:
    """System calls and long C calls: time-outs stay right, nothing is lost."""
    hammer(mode, thread, 4)


@needs_compiler
@pytest.mark.parametrize("version", [v for v in rig.pythons() if v != f"3.{sys.version_info[1]}"])
def test_other_interpreters(version: str) -> None:
    """Every Python from 3.10 on that this machine has."""
    for mode, thread in (("scheduler", "main"), ("scheduler", "auto"), ("objects", "main"), ("mallocs_gil", "auto")):
        hammer(mode, thread, 4, rig.pythons()[version])
