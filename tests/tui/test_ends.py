"""How commands without a screen end: by a signal, when their time is over, and with which code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sgtop_core.session
from sgtop_core.recording.reader import Recording
from sgtop_tui.cli import UserError, exit_codes, main

from tests.tui.headless_child import Simulated

ROOT = Path(__file__).parents[2]
RECORD, LINES, ONCE = ["record", "-o", "x.sgtop"], ["--json"], ["--once", "--for", "50s"]
METRICS = ["metrics", "--listen", "127.0.0.1:0"]


@pytest.mark.parametrize(
    ("argv", "number", "code"),
    [
        (RECORD, signal.SIGINT, exit_codes.OK),
        (RECORD, signal.SIGTERM, exit_codes.OK),
        (RECORD, signal.SIGHUP, exit_codes.OK),
        ([*RECORD[:1], "--on-alert"], signal.SIGHUP, exit_codes.OK),
        (LINES, signal.SIGTERM, exit_codes.OK),
        (LINES, signal.SIGHUP, exit_codes.OK),
        (METRICS, signal.SIGTERM, exit_codes.OK),
        (METRICS, signal.SIGHUP, exit_codes.OK),
        (ONCE, signal.SIGTERM, exit_codes.INTERRUPTED),
        (ONCE, signal.SIGHUP, exit_codes.INTERRUPTED),
    ],
    ids=lambda x: x.name if isinstance(x, signal.Signals) else x[0].strip("-") if isinstance(x, list) else "",
)
def test_a_signal_ends_it_as_ctrl_c_does_and_a_second_changes_nothing(
    argv: list[str], number: int, code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.tui.headless_child", "live", *argv]
    path = tmp_path / "x.sgtop"
    command = [str(path) if word == path.name else word for word in command]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            _wait_for(child, "ready")
            child.send_signal(number)
            _wait_for(child, "stopping")
            for again in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                child.send_signal(again)
            out, said = child.communicate(timeout=30)
        finally:
            child.kill()
    assert child.returncode == code, said
    assert "Traceback" not in said
    if argv is RECORD:
        assert out == f"{path}\n"
        with Recording(path) as r:
            assert r.complete
            assert r.seconds > 1
    if argv is LINES:
        assert all(json.loads(line) for line in out.splitlines())


def test_a_terminal_that_closes_ends_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.sgtop"
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "tests.tui.headless_child", "live", "record", "-o", str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as child:
        try:
            os.close(theirs)
            said = b""
            while b"recording " not in said:
                said += os.read(ours, 4096)
            os.close(ours)  # each word to it fails from now on
            child.send_signal(signal.SIGHUP)
            out, _ = child.communicate(timeout=30)
        finally:
            child.kill()
    assert (child.returncode, out) == (exit_codes.OK, f"{path}\n")
    with Recording(path) as r:
        assert r.complete


def _wait_for(child: subprocess.Popen[str], word: str) -> None:
    assert child.stderr is not None
    for line in child.stderr:
        if line.strip() == word:
            return
    raise AssertionError(f"it never was {word}")


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("live", exit_codes.OK),
        ("agentless", exit_codes.OK),
        ("starting", exit_codes.NOT_READY),
        ("hung", exit_codes.NOT_READY),
        ("waiting", exit_codes.SERVER_GONE),
    ],
)
@pytest.mark.parametrize("argv", [["--json"], ["--once"], ["--once", "--json"], RECORD, METRICS], ids=" ".join)
def test_the_code_says_how_the_server_stood_in_the_end(
    argv: list[str], state: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sgtop_core.session, "Session", Simulated)
    monkeypatch.setattr(Simulated, "state", state)
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "--for", "300ms"]) == code


def test_without_a_server_no_file_is_made_and_none_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(self: Simulated) -> None:
        raise UserError("no server", "", "", exit_codes.NO_SERVER)

    monkeypatch.setattr(sgtop_core.session, "Session", Simulated)
    monkeypatch.setattr(Simulated, "start", nobody)
    monkeypatch.chdir(tmp_path)
    assert main(RECORD) == exit_codes.NO_SERVER
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "x.sgtop").write_text("precious")
    assert main([*RECORD, "-f"]) == exit_codes.NO_SERVER
    assert main(RECORD) == exit_codes.FAILED
    assert (tmp_path / "x.sgtop").read_text() == "precious"
