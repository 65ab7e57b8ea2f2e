"""On a real pseudo-terminal: the screen comes up, and whatever ends it leaves the terminal as it was, and detaches."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sgtop_tui.cli import exit_codes

ROOT = Path(__file__).parents[2]
ALTERNATE, PRIMARY = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
UP_S = 30.0
"""Generous: the machine may be busy."""


class Terminal:
    """A pseudo-terminal with the app in it."""

    def __init__(self, *argv: str, size: tuple[int, int] = (80, 24), **env: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        paths = [ROOT, *(ROOT / d for d in ("agent", "probes", "core", "tui"))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tui.screen_child", *argv],
            stdin=slave, stdout=slave, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(map(str, paths)), **env},
        )  # fmt: skip
        self.output = b""

    def read(self, until: bytes = b"", limit_s: float = UP_S) -> bytes:
        """Collect output until ``until`` stands in it, or (without) the process has ended."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                with contextlib.suppress(OSError):
                    self.output += os.read(self.master, 1 << 16)
            if until and until in self.output:
                return self.output
            if not until and not ready and self.process.poll() is not None:
                return self.output
        raise AssertionError(f"no {until!r} within {limit_s} s; output ends {self.output[-300:]!r}")

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def ended(self) -> tuple[int, str]:
        """Wait for the end: (exit code, stderr). The terminal must be as it was before."""
        self.read()
        code = self.process.wait(UP_S)
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        assert termios.tcgetattr(self.slave) == self.before, "terminal modes were not put back"
        if ALTERNATE in self.output:
            assert self.output.rindex(PRIMARY) > self.output.rindex(ALTERNATE), "still on the alternate screen"
            assert self.output.rindex(SHOW) > self.output.rindex(HIDE), "the cursor is still hidden"
        assert "Traceback" not in said + self.output.decode(errors="replace")
        return code, said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        os.close(self.slave)
        os.close(self.master)


@contextlib.contextmanager
def terminal(*argv: str, **options: str) -> Iterator[Terminal]:
    t = Terminal(*argv, **options)  # type: ignore[arg-type]
    try:
        yield t
    finally:
        t.close()


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_leaving_with_a_key(key: bytes) -> None:
    with terminal() as t:
        t.read(b"taskset -cp 6-15 812")
        t.type(key)
        code, said = t.ended()
    assert code == exit_codes.OK
    assert said == "STOPPED 1\nCODE 0\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda s: s.name)
def test_leaving_by_a_signal(number: signal.Signals) -> None:
    with terminal() as t:
        t.read(b"taskset -cp 6-15 812")
        t.process.send_signal(number)
        code, said = t.ended()
    assert code == exit_codes.OK
    assert "STOPPED 1" in said


def test_a_session_that_breaks_is_one_line() -> None:
    with terminal(CHILD_FAILS="1") as t:
        code, said = t.ended()
    assert code == exit_codes.INTERNAL
    assert "STOPPED 1" in said
    assert "sgtop: a mistake in sgtop itself: RuntimeError: the session broke" in said


def test_a_mistake_in_the_screen_itself_is_one_line() -> None:
    with terminal(CHILD_BREAKS="1") as t:
        t.read(b"taskset -cp 6-15 812")
        t.type(b"?")
        code, said = t.ended()
    assert code == exit_codes.INTERNAL
    assert "sgtop: a mistake in sgtop itself: ZeroDivisionError: by zero" in said


def test_ascii_terminal_gets_ascii_only() -> None:
    with terminal("--ascii") as t:
        t.read(b"taskset -cp 6-15 812")
        t.type(b"?")
        t.read(b"esc closes")
        t.type(b"\x1b")
        time.sleep(0.3)
        t.type(b"q")
        t.ended()
        assert t.output.isascii()


def test_no_color_terminal_gets_no_colour() -> None:
    with terminal(NO_COLOR="1") as t:
        t.read(b"taskset -cp 6-15 812")
        t.type(b"q")
        t.ended()
    codes = {code for sgr in re.findall(rb"\x1b\[([0-9;]*)m", t.output) for code in sgr.split(b";")}
    # 39 and 49 are the terminal's own colours; the rest is weight, underline, reverse and their ends.
    assert codes <= {b"", b"0", b"1", b"2", b"4", b"7", b"22", b"24", b"27", b"39", b"49"}


class Tmux:
    """A tmux server of our own with the app in its only window."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        self.socket = str(folder / "tmux")
        paths = os.pathsep.join(str(p) for p in (ROOT, *(ROOT / d for d in ("agent", "probes", "core", "tui"))))
        command = f"cd {ROOT} && PYTHONPATH={paths} {sys.executable} -m tests.tui.screen_child 2>/dev/null; "
        width, height = map(str, size)
        self("new-session", "-d", "-s", "s", "-x", width, "-y", height, command + 'echo "LEFT $?"; sleep 600')

    def __call__(self, *argv: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self.socket, "-f", "/dev/null", *argv],
            capture_output=True, text=True, timeout=30, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        return done.stdout

    def shows(self, text: str) -> str:
        """The screen as soon as ``text`` stands on it."""
        end = time.monotonic() + UP_S
        screen = ""
        while time.monotonic() < end:
            screen = self("capture-pane", "-p", "-t", "s")
            if text in screen:
                return screen
            time.sleep(0.1)
        raise AssertionError(f"no {text!r} on\n{screen}")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[[tuple[int, int]], Tmux]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed here; .ci/run installs it")
    started: list[Tmux] = []

    def start(size: tuple[int, int]) -> Tmux:
        started.append(Tmux(tmp_path, size))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(subprocess.CalledProcessError):
            one("kill-server")


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=["80x24", "200x60"])
def test_a_real_terminal_shows_the_expected_screen(
    size: tuple[int, int], tmux: Callable[[tuple[int, int]], Tmux]
) -> None:
    pane = tmux(size)
    screen = pane.shows("taskset -cp 6-15 812")
    want = (Path(__file__).parent / "screens" / f"eager-and-stolen-{size[0]}x{size[1]}.txt").read_text("utf-8")
    shown = [line.rstrip() for line in screen.rstrip("\n").splitlines()]
    assert shown == want.rstrip("\n").splitlines()


def test_a_resized_tmux_is_clean_afterwards(tmux: Callable[[tuple[int, int]], Tmux]) -> None:
    pane = tmux((80, 24))
    pane.shows("taskset -cp 6-15 812")
    pane("resize-window", "-t", "s", "-x", "200", "-y", "60")
    pane.shows("main thread by stage")
    pane("send-keys", "-t", "s", "q")
    assert pane.shows("LEFT 0").split() == ["LEFT", "0"]


def test_without_a_terminal_text_is_printed() -> None:
    """``sgtop | cat``: no escape sequence, the exit code of --once."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / d) for d in ("agent", "probes", "core", "tui"))}
    done = subprocess.run(
        [sys.executable, "-m", "sgtop_tui", "--attach", ":1"],
        env=env, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.returncode == exit_codes.NO_SERVER
