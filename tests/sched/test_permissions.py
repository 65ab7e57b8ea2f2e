"""Unprivileged users and dropped capabilities: the level left, the missing permission named, the same verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sgtop_probes
from sgtop_probes.sched import perf

from . import rig

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv (util-linux), to become somebody with fewer rights",
)

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")
NO_CAPS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
ONLY_PERFMON = ("setpriv", "--bounding-set=-all,+perfmon", "--inh-caps=-all")

PROBE = """
import json, sys, time
from sgtop_probes.sched.open_best import open_best, try_levels
from sgtop_probes.sched.types import Watched
pid, seconds = int(sys.argv[1]), float(sys.argv[2])
s = open_best([Watched(pid, pid)])
s.poll()
wait, count, batch = 0, 0, None
suspects = []
end = time.monotonic() + seconds
while time.monotonic() < end:
    s.wait(0.1)
    batch = s.poll()
    wait += sum(batch.wait)
    suspects += [x.pid for x in batch.suspects]
    count += sum(batch.first)
needs = s.needs
print(json.dumps({
    "level": s.level, "needs": [needs.level, needs.missing, needs.mend] if needs else None,
    "wait_ms": wait / 1e6, "suspects": suspects, "counters": [t.involuntary for t in batch.threads] if batch else [],
    "levels": [[lv, n.missing if n else None] for lv, n in try_levels([Watched(pid, pid)])],
}))
s.close()
"""


def _readable_copy(folder: Path) -> Path:
    """The probes where everybody may read them: a checkout below /root may not be."""
    shutil.copytree(
        Path(sgtop_probes.__file__).parent, folder / "sgtop_probes", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def probe(prefix: Sequence[str], pid: int, library: Path, seconds: float = 3.5) -> dict[str, Any]:
    """Run the probe as somebody else."""
    python = os.path.realpath(sys.executable)
    done = subprocess.run(
        [*prefix, python, "-S", "-c", PROBE, str(pid), str(seconds)],
        env={"PYTHONPATH": str(library), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    return got


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    for parent in (folder.parent, folder.parent.parent):
        parent.chmod(parent.stat().st_mode | 0o055)
    return _readable_copy(folder)


@pytest.fixture
def paranoid_is_strict() -> None:
    if (perf.paranoid() or 0) < 1:
        pytest.skip("kernel.perf_event_paranoid allows everything here, so nothing is missing")


@pytest.mark.usefixtures("paranoid_is_strict")
def test_another_user_gets_level_d_with_the_same_verdict(cpu: str, library: Path) -> None:
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BUSY, "hog", cpu) as hog:
        got = probe(NOBODY, victim.pid, library)
    assert got["level"] == "D"
    assert got["wait_ms"] > 500
    assert hog.pid in got["suspects"]
    level, missing, mend = got["needs"]
    assert level == "C"
    assert "user" in missing
    assert "CAP_PERFMON" in missing
    assert "server's user" in mend
    missing_at = dict(got["levels"])
    assert "tracefs" in missing_at["A"] or "CAP_PERFMON" in missing_at["A"]
    assert "CAP_PERFMON" in missing_at["B"]
    assert missing_at["D"] is None


@pytest.mark.usefixtures("paranoid_is_strict")
def test_the_servers_own_user_gets_level_c(cpu: str, library: Path) -> None:
    with (
        rig.running(rig.BUSY, "victim", cpu, prefix=NOBODY) as victim,
        rig.running(rig.BUSY, "hog", cpu) as hog,
    ):
        got = probe(NOBODY, victim.pid, library)
    assert got["level"] == "C"
    assert got["wait_ms"] > 500
    assert hog.pid in got["suspects"]
    assert got["needs"][0] == "B"
    assert "CAP_PERFMON" in got["needs"][1]
    assert "perf_event_paranoid" in got["needs"][2] or "PERFMON" in got["needs"][2]


@pytest.mark.usefixtures("paranoid_is_strict")
def test_root_without_capabilities(cpu: str, library: Path) -> None:
    """As in a container that drops everything; both processes have the same rights, so level C works."""
    with (
        rig.running(rig.BUSY, "victim", cpu, prefix=NO_CAPS) as victim,
        rig.running(rig.BUSY, "hog", cpu) as hog,
    ):
        got = probe(NO_CAPS, victim.pid, library)
    assert got["level"] == "C"
    assert hog.pid in got["suspects"]
    assert "CAP_PERFMON" in got["needs"][1]


@pytest.mark.usefixtures("level_a")
def test_perfmon_alone_gets_level_b_or_better(cpu: str, library: Path) -> None:
    """CAP_PERFMON without tracefs: B, and A's need is tracefs; where tracefs is mounted and readable: A."""
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BUSY, "hog", cpu):
        got = probe(ONLY_PERFMON, victim.pid, library)
    assert got["level"] in "AB"
    assert got["wait_ms"] > 500
    if got["level"] == "B":
        assert got["needs"][0] == "A"
        assert "tracefs" in got["needs"][1] or "tracing" in got["needs"][1]
        assert "mount" in got["needs"][2]
