"""The ``sgtop`` command as a user runs it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "sgtop_tui")
REPO = Path(__file__).parents[2]


def sgtop(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run it to its end, without a terminal."""
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=REPO,
    )


class Watching:
    """``sgtop --attach T --json`` in the background; keeps the newest snapshot."""

    def __init__(self, target: str, *arguments: str) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            [*COMMAND, "--attach", target, "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPO,
        )
        self.snapshots: list[dict[str, Any]] = []
        self.errors = ""
        self._arrived = threading.Condition()
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._arrived:
                self.snapshots.append(json.loads(line))
                self._arrived.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def wait(self, what: Callable[[dict[str, Any]], Any], timeout_s: float = 30.0) -> dict[str, Any]:
        """The first snapshot from now on for which ``what`` holds.

        Raises:
            TimeoutError: none did.
        """
        end = time.monotonic() + timeout_s
        seen = len(self.snapshots)
        while True:
            with self._arrived:
                new, seen = self.snapshots[seen:], len(self.snapshots)
                for snapshot in new:
                    if what(snapshot):
                        return snapshot
                if not new and not self._arrived.wait(min(0.5, max(0.0, end - time.monotonic()))):
                    ended = self.process.poll()
                    if time.monotonic() >= end or ended is not None:
                        last = self.snapshots[-1]["state"] if self.snapshots else None
                        raise TimeoutError(f"not within {timeout_s:g} s; exit {ended}, last {last}; {self.errors}")

    def live(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """The first snapshot in which every rank is live."""
        return self.wait(lambda s: s["ranks"] and all(r["state"] == "live" for r in s["ranks"]), timeout_s)

    def kill(self, number: int) -> None:
        """Send a signal to the command's process."""
        os.kill(self.process.pid, number)

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it, as Ctrl-C does; its exit status."""
        if self.process.poll() is None:
            self.kill(number)
        try:
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for thread in self._threads:
                thread.join()
            assert self.process.stdout is not None
            assert self.process.stderr is not None
            self.process.stdout.close()
            self.process.stderr.close()
        return self.process.returncode

    def __enter__(self) -> Watching:
        """Running."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ended."""
        if not all(stream is None or stream.closed for stream in (self.process.stdout, self.process.stderr)):
            self.stop()
