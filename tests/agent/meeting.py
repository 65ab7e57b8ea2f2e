"""A client for tests: finds the waiting pair of an agent in this process and speaks the wire."""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from sgtop_agent import boot, wire

from tests.agent.fake_sglang import wait_for

TOKEN = "a-token"


def thread_names() -> list[str]:
    """Names of this process's threads, as the kernel has them."""
    names = []
    for tid in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{tid}/comm") as f:
                names.append(f.read().strip())
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    return names


def agent_threads() -> list[str]:
    return [n for n in thread_names() if n == boot.THREAD_NAME or re.fullmatch(r"sg:\d+:\w+", n)]


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


class Client:
    """Blocking, with time limits; the socket is a duplicate of the end that sgtop would take."""

    def __init__(self, fd: int) -> None:
        self.sock = socket.socket(fileno=fd)
        self.frames: list[dict[str, Any]] = []
        self.fds: list[int] = []
        self._reader = wire.FrameReader()
        self.eof = False

    def send(self, frame: dict[str, Any]) -> None:
        self.sock.sendall(wire.pack(frame))

    def hello(self, token: str = TOKEN, proto: int = wire.PROTOCOL) -> None:
        self.send({"k": "hello", "proto": proto, "token": token})

    def pump(self, seconds: float = 0.02) -> None:
        """Take what has come."""
        end = time.monotonic() + seconds
        while not self.eof:
            ready, _, _ = select.select([self.sock], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 65536, 4)
            except ConnectionResetError:
                data, fds = b"", []
            self.fds += fds
            if not data:
                self.eof = True
                return
            self.frames += self._reader.feed(data)

    def wait(self, condition: Callable[[dict[str, Any]], bool], timeout: float = 20.0) -> dict[str, Any]:
        """The first frame for which ``condition`` holds; heartbeats go out meanwhile."""
        beat = 0.0

        def found() -> Any:
            nonlocal beat
            if time.monotonic() - beat > 0.5 and not self.eof:
                beat = time.monotonic()
                try:
                    self.send({"k": "ping"})
                except OSError:
                    pass
            self.pump()
            return next((f for f in self.frames if condition(f)), None)

        try:
            return wait_for(found, timeout)  # type: ignore[no-any-return]
        except AssertionError:
            raise AssertionError(f"not among {[(f['k'], f.get('why')) for f in self.frames]}") from None

    def kind(self, kind: str) -> dict[str, Any]:
        return self.wait(lambda f: f["k"] == kind)

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        n = f"{op}-{len(self.frames)}-{time.monotonic_ns()}"
        self.send({"k": "cmd", "id": n, "op": op, "args": args})
        return self.wait(lambda f: f["k"] == "reply" and f["id"] == n)

    def close(self) -> None:
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def options(nonce: str = "beef", **more: Any) -> dict[str, Any]:
    return {
        "way": "pending-call",
        "token": TOKEN,
        "rendezvous": "pair",
        "nonce": nonce,
        "dir": None,
        "deadline_ns": time.monotonic_ns() + 2_000_000_000,
        "page": None,
        "nvtx": False,
        "hash": "h1",
        **more,
    }


def take(nonce: str = "beef", timeout: float = 5.0) -> Client:
    """The client's end of the pair that waits under ``nonce``: here a duplicate does for ``pidfd_getfd``."""

    def found() -> Any:
        for name in thread_names():
            match = re.fullmatch(rf"sg:(\d+):{nonce}", name)
            if match:
                return int(match.group(1))
        return None

    return Client(os.dup(wait_for(found, timeout)))
