"""``make demo``: it opens sgtop on a real server, and however it ends, nothing that it started is left."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.servers import Pool
from tools.demo import Missing, check_machine

REPO = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "tools.demo"]


class Demo:
    """The demo in a terminal of its own; everything that it starts carries a mark in its environment."""

    def __init__(self) -> None:
        """Start it."""
        self.mark = f"SGTOP_TEST_MARK={uuid.uuid4().hex}"
        self.terminal, theirs = pty.openpty()
        name, _, value = self.mark.partition("=")
        env = {**os.environ, name: value, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)  # so that Ctrl-C and a hang-up come from it

        self.process = subprocess.Popen(
            DEMO, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=REPO, preexec_fn=take_terminal
        )
        os.close(theirs)
        self.shown = ""

    def read(self, until: str, timeout_s: float = 240.0) -> None:
        """Read the terminal until the pattern ``until`` is there.

        Raises:
            TimeoutError: it does not come.
        """
        end = time.monotonic() + timeout_s
        while not re.search(until, self.shown):
            if time.monotonic() > end or self.process.poll() is not None:
                raise TimeoutError(f"no {until!r}; exit {self.process.poll()}; {self.shown[-3000:]!r}")
            if select.select([self.terminal], [], [], 0.5)[0]:
                try:
                    self.shown += os.read(self.terminal, 65536).decode(errors="replace")
                except OSError:  # the other side has closed
                    continue

    def drain(self, timeout_s: float = 60.0) -> int:
        """Read until the process has ended; its exit status."""
        end = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.2)[0]:
                try:
                    os.read(self.terminal, 65536)
                except OSError:
                    time.sleep(0.1)
        return self.process.wait(1)

    def left(self) -> list[str]:
        """Command lines of processes with the mark that have not ended."""
        out = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    out.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
            except OSError:
                continue
        return out

    def wait_until_nothing_is_left(self) -> None:
        """Wait for the keepers to end what is under them.

        Raises:
            TimeoutError: some of it stays.
        """
        end = time.monotonic() + 60
        while left := self.left():
            if time.monotonic() > end:
                raise TimeoutError(f"left: {left}")
            time.sleep(0.2)


@pytest.fixture
def demo(servers: Pool) -> Iterator[Demo]:
    servers.stop()
    demo = Demo()
    yield demo
    if demo.process.poll() is None:
        demo.process.kill()
        demo.process.wait()
    try:
        os.close(demo.terminal)
    except OSError:
        pass  # the test has hung up already
    demo.wait_until_nothing_is_left()


def opened(demo: Demo) -> None:
    demo.read("DECODE")
    assert any("sglang" in line for line in demo.left())


def test_quit_ends_all_that_it_started(demo: Demo) -> None:
    opened(demo)
    os.write(demo.terminal, b"q")
    assert demo.drain() == 0
    assert demo.left() == []


def test_hang_up(demo: Demo) -> None:
    opened(demo)
    os.close(demo.terminal)
    demo.process.wait(60)
    demo.wait_until_nothing_is_left()


def test_killed(demo: Demo) -> None:
    opened(demo)
    demo.process.kill()
    demo.process.wait()
    demo.wait_until_nothing_is_left()


def test_broken_off_while_the_server_starts(demo: Demo) -> None:
    demo.read("starting on port")
    os.write(demo.terminal, b"\x03")
    assert demo.drain() == 128 + signal.SIGINT
    assert demo.left() == []


def test_without_a_terminal_it_prints_once_and_ends(servers: Pool) -> None:
    servers.stop()
    done = subprocess.run(
        DEMO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        cwd=REPO,
    )
    assert done.returncode == 0, done.stderr
    assert "DECODE" in done.stdout
    assert "SGLang" in done.stdout
    assert "Traceback" not in done.stderr


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Missing, match="apt-get install gcc"):
        check_machine()
