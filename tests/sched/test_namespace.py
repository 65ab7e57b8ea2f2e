"""Inside a pid namespace: the tracepoints say the host's pids, sgtop and the engineer see others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sgtop_probes
from sgtop_probes.sched.names import in_initial_pid_namespace

from . import rig

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare (util-linux)"
)

INSIDE = """
import ctypes, json, os, sys, time
sys.path.insert(0, sys.argv[1]); cpu = int(sys.argv[2])
import subprocess
os.setsid()
try: open("/proc/self/autogroup", "w").write("-10")  # both of ours outweigh whatever else runs on this host
except OSError: pass
def spawn(name):
    code = ("import ctypes,os,sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0);"
            "os.sched_setaffinity(0, {%d})\\nwhile True: pass" % cpu)
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", code, name])
victim, hog = spawn("victim"), spawn("hog")
time.sleep(0.3)
from sgtop_probes.sched.level_a import LevelA
from sgtop_probes.sched.level_b import LevelB
from sgtop_probes.sched.types import Watched
out = {"victim": victim.pid, "hog": hog.pid}
for cls in (LevelA, LevelB):
    s = cls([Watched(victim.pid, victim.pid)])
    who, tids = {}, set()
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        s.wait(0.1)
        b = s.poll()
        for i in range(len(b)):
            tids.add(b.tid[i])
            k = "%d %s" % (b.who_pid[i], b.comms[b.who_comm[i]])
            who[k] = who.get(k, 0) + b.wait[i] / 1e6
    out[s.level] = {"who": who, "tids": sorted(tids), "host": b.host_pids}
    s.close()
victim.kill(); hog.kill(); victim.wait(); hog.wait()
print(json.dumps(out))
"""


def _run_inside(cpu: str) -> dict[str, Any]:
    library = Path(sgtop_probes.__file__).parent.parent
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", INSIDE, str(library), cpu],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    return got


@pytest.mark.usefixtures("level_a")
def test_culprits_inside_a_pid_namespace(cpu: str) -> None:
    got = _run_inside(cpu)
    assert got["victim"] < 100, "this is a namespace of its own"
    for level in "AB":
        by = got[level]["who"]
        assert got[level]["tids"] == [got["victim"]], "rows speak the namespace's ids"
        assert sum(by.values()) > 500
        assert by[f"{got['hog']} hog"] > 100, by


@pytest.mark.usefixtures("level_a")
def test_a_culprit_outside_the_namespace_keeps_its_name(cpu: str) -> None:
    with rig.running(rig.BUSY, "outsider", cpu, stranger=True) as outsider:
        got = _run_inside(cpu)
    names = {k.partition(" ")[2]: ms for k, ms in got["A"]["who"].items()}
    assert names["outsider"] > 100
    assert f"{outsider.pid} outsider" in got["A"]["who"], "the host's pid, for want of another"
    assert got["A"]["host"] is True


@pytest.mark.usefixtures("level_a")
def test_this_namespace_is_recognised() -> None:
    inode = os.stat("/proc/self/ns/pid").st_ino
    assert in_initial_pid_namespace() == (inode == 4026531836)
