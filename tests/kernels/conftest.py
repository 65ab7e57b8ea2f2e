"""A compiled helper, a compiled mock libcupti, and make-believe schedulers to trace."""

from __future__ import annotations

import array
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "agent"


def build_helper() -> Path:
    """The agent's native helper, compiled into the source tree where it is missing or old."""
    spec = importlib.util.spec_from_file_location("native_build", AGENT / "native" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    target = AGENT / "sgtop_agent" / "kernels" / "sgring.so"
    changed = max(path.stat().st_mtime for path in native.SOURCE.parent.glob("*.[ch]"))
    if not target.exists() or target.stat().st_mtime < changed:
        native.build(target)
    return target


def build_mock(folder: Path) -> Path:
    """The mock, under the name by which CUPTI is found."""
    out = folder / "libcupti.so.13"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "tests of kernel tracing need a C compiler (cc, gcc or clang)"
    source = Path(__file__).parent / "mockcupti" / "mockcupti.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcupti.so.13"]
    subprocess.run([compiler, *flags, "-o", str(out), str(source), "-lpthread"], check=True, timeout=120)
    return out


@pytest.fixture(scope="session")
def helper() -> Path:
    return build_helper()


@pytest.fixture(scope="session")
def mock_cupti(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_mock(tmp_path_factory.mktemp("cupti"))


class Process:
    """A target.py process, and what a client of it can do."""

    def __init__(self, library: Path, **options: Any) -> None:
        here, there = socket.socketpair()
        self.socket = here
        env = {**os.environ, "PYTHONPATH": str(options.pop("agent", AGENT))}
        self.popen = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "target.py"), str(there.fileno()), str(library),
             json.dumps(options)],
            pass_fds=[there.fileno()], env=env,
        )  # fmt: skip
        there.close()
        self.socket.settimeout(30)
        self._buffered = b""

    def ask(self, op: str, **more: Any) -> tuple[Any, int | None]:
        """Send a command; (reply, descriptor that came with it)."""
        self.socket.sendall(json.dumps({"op": op, **more}).encode() + b"\n")
        fd = None
        while b"\n" not in self._buffered:
            data, control, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
            if not data:
                raise RuntimeError(f"target ended with {self.popen.wait(10)}")
            for _, _, raw in control:
                fd = array.array("i", raw)[0]
            self._buffered += data
        line, self._buffered = self._buffered.split(b"\n", 1)
        return json.loads(line), fd

    def do(self, op: str, **more: Any) -> Any:
        """Send a command; its reply."""
        reply, fd = self.ask(op, **more)
        if fd is not None:
            os.close(fd)
        return reply

    def mock(self, fn: str, *args: int) -> int:
        return int(self.do("mock", fn=fn, args=list(args))["result"])

    def state(self) -> dict[str, Any]:
        out: dict[str, Any] = self.do("state")["state"]
        return out

    def until(self, test: Callable[[dict[str, Any]], bool], timeout: float = 10.0) -> dict[str, Any]:
        """Wait for a state."""
        end = time.monotonic() + timeout
        while True:
            state = self.state()
            if test(state):
                return state
            if time.monotonic() > end:
                raise AssertionError(f"state after {timeout} s: {state}")
            time.sleep(0.02)

    def close(self) -> None:
        self.socket.close()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(10)


@pytest.fixture
def start(helper: Path, mock_cupti: Path) -> Iterator[Callable[..., Process]]:
    """Start make-believe schedulers; they end with the test, and none may have died on the way."""
    running: list[Process] = []

    def make(**options: Any) -> Process:
        p = Process(options.pop("library", mock_cupti), **options)
        running.append(p)
        return p

    yield make
    codes = []
    for p in running:
        died = p.popen.poll()
        p.close()
        codes.append(died)
    assert all(c is None for c in codes), f"a scheduler died during the test: {codes}"
