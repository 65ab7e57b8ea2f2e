"""What these tests need of the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sgtop_probes.sched.level_a import LevelA
from sgtop_probes.sched.types import Watched


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """What measures (this process, and perf) is not starved by what else runs on the host; only root may have that."""
    group = Path("/proc/self/autogroup")
    try:
        group.write_text("-10")
    except OSError:
        yield
        return
    yield
    group.write_text("0")


@pytest.fixture(scope="session")
def level_a() -> None:
    """Level A can be opened here."""
    try:
        LevelA([Watched(os.getpid(), os.getpid())]).close()
    except OSError as e:
        pytest.skip(f"level A needs CAP_PERFMON and tracefs: {e}")


@pytest.fixture(scope="session")
def perf_binary() -> str:
    """The perf binary that figures are compared with."""
    found = shutil.which("perf")
    if found is None:
        pytest.skip("the perf binary is not installed (Debian: apt-get install linux-perf)")
    return found


@pytest.fixture(scope="session")
def cpu() -> str:
    """The CPU on which victims and competitors are pinned."""
    return str(max(os.sched_getaffinity(0)))
