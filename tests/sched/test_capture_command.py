"""``sgtop capture``: both recordings in one folder, or a clear line and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sgtop_core.session
from sgtop_core.model.model import Model, unknown_rank
from sgtop_core.model.snapshot import Alert, Snapshot
from sgtop_tui.cli import capture, exit_codes, main


class FakeSession:
    """Has one rank, attached from its second snapshot on."""

    refuse: Exception | None = None
    rank_pid = 4242

    def __init__(self, target: str | None, options: Any) -> None:
        self.taps: list[Callable[[str, dict[str, Any], int], None]] = []
        self.looks = 0
        self.stopped = False

    def start(self) -> None:
        if self.refuse is not None:
            raise self.refuse

    def snapshot(self) -> Snapshot:
        self.looks += 1
        m = Model()
        m.alerts = (Alert("preempted", "warning", 0.0, "TP0", "TP0 preempted 3×", "it waited", "taskset …"),)
        state = "connecting" if self.looks == 1 else "live"
        s = m.snapshot(0, 1, 1.79e9)
        return dataclasses.replace(s, ranks=(unknown_rank("TP0", self.rank_pid, state, ""),))

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sgtop_core.session, "Session", FakeSession)
    monkeypatch.setattr(FakeSession, "refuse", None)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("level_a", "perf_binary")
def test_both_recordings_and_how_to_open_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--perf-sched", "300ms", "-o", "here"]) == exit_codes.OK
    assert capsys.readouterr().out == "here\n", "stdout is data"
    assert set(os.listdir("here")) == {"README.txt", "perf-sched.data", "sgtop.sgtop"}
    text = Path("here/README.txt").read_text()
    assert "--tid 4242    # TP0" in text
    assert "TP0 preempted 3×" in text
    assert os.path.getsize("here/perf-sched.data") > 1000
    assert main(["capture", "--perf-sched", "300ms", "-o", "here"]) == exit_codes.FAILED
    assert "here exists" in capsys.readouterr().err


def test_without_perf_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["capture", "--perf-sched", "1s", "-o", "here"]) == exit_codes.UNSUPPORTED
    err = capsys.readouterr().err
    assert "there is no perf binary on PATH" in err
    assert "fix:" in err
    assert not os.path.exists("here")


def _perf(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "bin" / "perf"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo perf version 9; exit 0; }}\n{script}\n')
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")


def test_a_server_that_is_not_there_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sgtop_tui.cli import UserError

    _perf(tmp_path, "exit 0", monkeypatch)
    monkeypatch.setattr(FakeSession, "refuse", UserError("no server", exit_code=exit_codes.NO_SERVER))
    assert main(["capture", "--perf-sched", "1s", "-o", "here"]) == exit_codes.NO_SERVER
    assert "no server" in capsys.readouterr().err
    assert not os.path.exists("here")


def test_a_perf_without_permission_says_what_grants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _perf(tmp_path, 'echo "Access to performance monitoring is limited: Permission denied" >&2; exit 255', monkeypatch)
    assert main(["capture", "--perf-sched", "1s", "-o", "here"]) == exit_codes.NO_PERMISSION
    err = capsys.readouterr().err
    assert "Permission denied" in err
    assert "perf_event_paranoid" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_perf_and_leaves_no_half_a_capture(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    _perf(tmp_path, f"trap 'echo > {ended}; exit 0' INT; echo > {begun}; sleep 30 & wait", monkeypatch)

    def signals() -> None:
        while not begun.exists():
            time.sleep(0.01)
        for each in (number, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), each)
            time.sleep(0.01)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=signals)
    thread.start()
    assert main(["capture", "--perf-sched", "20s", "-o", "here"]) == exit_codes.INTERRUPTED
    thread.join()
    assert ended.exists(), "perf was asked to end"
    assert not os.path.exists("here")
    assert signal.getsignal(signal.SIGTERM) is before


def test_it_waits_for_the_ranks_but_not_for_ever() -> None:
    s = FakeSession(None, None)
    capture.ready(s, 5.0)  # type: ignore[arg-type]
    assert s.looks == 2
    s.looks = -100
    capture.ready(s, 0.0)  # type: ignore[arg-type]
