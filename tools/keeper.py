"""Keeps a command and everything it starts, and ends all of it when its owner ends it or dies.

The keeper is a process of its own, in its own session: a hang-up or Ctrl-C in the owner's terminal does not reach the
command, and however the owner goes (kill -9 included), nothing is left behind. It is a child subreaper, so that
processes whose parent died are still its to end. Standard library only; run as a file.

Protocol: the keeper writes the command's pid and a newline to stdout. End of file on stdin, SIGTERM, or the death of
the owner end the command: SIGTERM to its first process, then, after the grace time, SIGKILL to every descendant.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """In a child, before exec: get this signal when the thread that started it ends, however that happens."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


class Kept:
    """A command under a keeper. ``pid`` is the command's own first process."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float = 15.0,
    ) -> None:
        """Start ``command`` with its output appended to ``log``.

        Raises:
            RuntimeError: the command could not be started; the text says why.
        """
        self.log = log
        self._keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(os.getpid()), f"{grace_s:g}", str(log), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._stdin, stdout = self._keeper.stdin, self._keeper.stdout
        with stdout:
            line = stdout.readline().decode(errors="replace").strip()
        if not line.isdigit():
            self._stdin.close()
            self._keeper.wait()
            raise RuntimeError(f"{command[0]} could not be started: {line or 'the keeper died'}")
        self.pid = int(line)

    def poll(self) -> int | None:
        """Exit status once everything has ended, None before; negative for a signal."""
        return self._keeper.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until everything has ended.

        Raises:
            subprocess.TimeoutExpired: it has not by then.
        """
        status = self._keeper.wait(timeout_s)
        self._stdin.close()
        return status

    def stop(self) -> int:
        """End the command and all it started; returns when all of it is gone."""
        self._stdin.close()
        return self._keeper.wait()


def descendants(pid: int) -> list[int]:
    """Processes below ``pid`` that have not ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text(errors="replace")
        except OSError:
            continue
        state, ppid = stat.rpartition(")")[2].split()[:2]
        if state != "Z":
            children.setdefault(int(ppid), []).append(int(name))
    out: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        out += below
        todo += below
    return out


def _reap(pid: int) -> int | None:
    """Collect every ended child; the exit status of ``pid`` when it is among them."""
    status = None
    while True:
        try:
            done, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if done == 0:
            return status
        if done == pid:
            status = os.waitstatus_to_exitcode(raw)


def _end(pid: int, status: int | None, grace_s: float) -> int:
    deadline = time.monotonic() + grace_s
    if status is None:
        os.kill(pid, signal.SIGTERM)
    while True:
        got = _reap(pid)
        status = got if got is not None else status
        left = descendants(os.getpid())
        if not left:
            return -signal.SIGKILL if status is None else status
        # A command that ended by itself has had its grace: what it left behind goes at once.
        if status is not None or time.monotonic() > deadline:
            for victim in left:
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        time.sleep(0.05)


def _main(owner: int, grace_s: float, log: str, command: Sequence[str]) -> int:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_w)
    ending = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def in_child() -> None:
        die_with_parent()
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    try:
        owner_fd = os.pidfd_open(owner)
        with open(log, "ab") as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=in_child)
    except (OSError, subprocess.SubprocessError) as e:
        print(e, flush=True)
        return 127
    try:
        os.write(1, b"%d\n" % child.pid)
    except OSError:  # the owner has died already
        ending = True
    os.close(1)
    os.open(os.devnull, os.O_WRONLY)
    status: int | None = None
    with selectors.DefaultSelector() as selector:
        for fd in (0, owner_fd, wake_r):
            selector.register(fd, selectors.EVENT_READ)
        while not ending and status is None:
            for key, _ in selector.select():
                if key.fd == wake_r:
                    os.read(wake_r, 4096)
                    status = _reap(child.pid)
                else:
                    ending = True
    return _end(child.pid, status, grace_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("owner", type=int)
    parser.add_argument("grace_s", type=float)
    parser.add_argument("log")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    code = _main(given.owner, given.grace_s, given.log, given.command)
    if code < 0:  # end by the same signal, so that the owner sees it
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
