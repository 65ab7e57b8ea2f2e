"""Nothing outlives its owner, however the owner goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.keeper import Kept

REPO = Path(__file__).parents[2]
# A tree: the command, a child, and a grandchild whose parent is gone.
TREE = "sleep 300 & (sleep 301 & echo $! > {0}/orphan); echo $! > {0}/child; echo $$ > {0}/self; wait"


def until(what: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    end = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def tree(folder: Path) -> list[int]:
    files = [folder / name for name in ("child", "orphan", "self")]
    assert until(lambda: all(f.exists() and f.read_text().strip() for f in files))
    return [int(f.read_text()) for f in files]


def test_stop_ends_the_whole_tree_orphans_included(tmp_path: Path) -> None:
    kept = Kept(["bash", "-c", TREE.format(tmp_path)], log=tmp_path / "log", grace_s=5)
    pids = tree(tmp_path)
    assert kept.pid == pids[-1]
    assert not any(gone(p) for p in pids)
    assert kept.poll() is None
    kept.stop()
    assert all(gone(p) for p in pids)


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    kept = Kept(["bash", "-c", "trap '' TERM; " + TREE.format(tmp_path)], log=tmp_path / "log", grace_s=0.5)
    pids = tree(tmp_path)
    assert kept.stop() == -signal.SIGKILL
    assert all(gone(p) for p in pids)


def test_exit_status_and_log_of_a_command_that_ends_by_itself(tmp_path: Path) -> None:
    kept = Kept(["bash", "-c", "echo out; echo err >&2; exit 7"], log=tmp_path / "log")
    assert kept.wait(20) == 7
    assert (tmp_path / "log").read_text().split() == ["out", "err"]


def test_what_a_killed_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    kept = Kept(["bash", "-c", TREE.format(tmp_path)], log=tmp_path / "log", grace_s=60)
    pids = tree(tmp_path)
    os.kill(kept.pid, signal.SIGKILL)
    assert kept.wait(20) == -signal.SIGKILL
    assert all(gone(p) for p in pids)


def test_a_command_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no-such-command could not be started: .*No such file"):
        Kept(["/no-such-command"], log=tmp_path / "log")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_death_of_the_owner_ends_the_tree(tmp_path: Path, number: signal.Signals) -> None:
    # Begun with & in a script, these tests ignore SIGINT, and what they start would too.
    program = (
        "import pathlib, signal, sys, time; from tools.keeper import Kept\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "kept = Kept(['bash', '-c', sys.argv[1]], log=pathlib.Path(sys.argv[2]), grace_s=5); time.sleep(300)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, TREE.format(tmp_path), str(tmp_path / "log")],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    pids = tree(tmp_path)
    os.killpg(owner.pid, number)
    owner.wait(20)
    assert until(lambda: all(gone(p) for p in pids))


def test_the_death_of_the_keeper_ends_the_command(tmp_path: Path) -> None:
    kept = Kept(["bash", "-c", "echo $PPID > " + str(tmp_path / "keeper") + "; exec sleep 300"], log=tmp_path / "log")
    file = tmp_path / "keeper"
    assert until(lambda: file.exists() and bool(file.read_text().strip()))
    os.kill(int(file.read_text()), signal.SIGKILL)
    assert until(lambda: gone(kept.pid))
    kept.stop()
