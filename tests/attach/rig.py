"""Targets for attach tests: processes in known states, and what they say about themselves afterwards."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sgtop_agent import schema, wire
from sgtop_probes import procfs
from sgtop_probes.attach import AttachOptions, open_rank
from sgtop_probes.client import Connection, ConnectionLost
from sgtop_probes.discovery import RankProcess

from . import python314

HERE = Path(__file__).parent
BUSY = HERE / "targets" / "busy.py"


@functools.lru_cache(maxsize=1)
def scratch() -> Path:
    """A folder that everybody may read, for what targets of other users need."""
    folder = Path(tempfile.mkdtemp(prefix="sgtop-test-"))
    folder.chmod(0o755)
    return folder


@functools.lru_cache(maxsize=1)
def native() -> Path | None:
    """The C part of the targets; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    out = scratch() / "native.so"
    words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(out), str(HERE / "targets" / "native.c"), "-ldl"]
    subprocess.run(words, check=True, timeout=120)
    return out


@functools.lru_cache(maxsize=1)
def tiny_agent() -> Path:
    """A package that keeps the rendezvous and nothing else; the wire is the real one."""
    folder = scratch() / "tiny" / "sgtop_agent"
    shutil.copytree(HERE / "tiny_agent", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for module in (wire, schema):
        shutil.copy(str(module.__file__), folder / Path(str(module.__file__)).name)
    return folder


@functools.lru_cache(maxsize=1)
def pythons() -> dict[str, list[str]]:
    """Version → words that start it: this one, and every other from 3.10 on that this machine has."""
    found = {f"3.{sys.version_info[1]}": [os.path.realpath(sys.executable)]}
    places = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    places += sorted(Path.home().glob(".pyenv/versions/3.*/bin"))
    for minor in range(10, 15):
        for place in places:
            path = place / f"python3.{minor}"
            if f"3.{minor}" not in found and path.exists() and _starts(path, minor):
                found[f"3.{minor}"] = [str(path)]
    if "3.14" not in found:
        try:
            found["3.14"] = python314.command()
        except python314.NotToBeHad:
            pass
    return dict(sorted(found.items(), key=lambda item: int(item[0][2:])))


def _starts(path: Path, minor: int) -> bool:
    words = [str(path), "-c", "import sys, ctypes; print(sys.version_info[1])"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() == str(minor)


class Target:
    """A running target."""

    def __init__(self, process: subprocess.Popen[str], pid: int | None = None) -> None:
        self.process = process
        self.pid = pid or process.pid

    @property
    def rank(self) -> RankProcess:
        """As discovery would give it."""
        return RankProcess("TP0", self.pid)

    def end(self, timeout: float = 20) -> dict[str, Any]:
        """Ask it to end; what it says about itself.

        Raises:
            AssertionError: it died, hangs, or said nothing.
        """
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the target does not end") from None
        assert self.process.returncode == 0, f"the target died: {self.process.returncode} {err[-600:]}"
        report: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return report

    def maps_at(self, address: int, size: int) -> bool:
        """Whether writable memory is mapped over the whole range."""
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            if start <= address and address + size <= end and line.split()[1] == "rw-p":
                return True
        return False

    def fds(self) -> int:
        """Number of its open descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def comms(self) -> set[str]:
        """Names of its threads."""
        names = (procfs.read(p) for p in Path(f"/proc/{self.pid}/task").glob("*/comm"))  # threads end meanwhile
        return {name.strip() for name in names if name}


@contextmanager
def target(
    mode: str,
    *,
    seconds: float = 120,
    python: Sequence[str] | None = None,
    prefix: Sequence[str] = (),
    helpers: int = 3,
    env: dict[str, str] | None = None,
) -> Iterator[Target]:
    """Start ``busy.py MODE``. ``prefix``: words before Python's (setpriv, unshare)."""
    library = native()
    words = [*prefix, *(python or pythons()[f"3.{sys.version_info[1]}"]), str(BUSY), mode, str(seconds)]
    process = subprocess.Popen(
        [*words, *([str(library)] if library else [])],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
        env={**os.environ, "HELPERS": str(helpers), **(env or {})},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.strip() == "READY", process.communicate()[1][-600:]
        time.sleep(0.2)  # its main thread is where the mode wants it
        yield Target(process, innermost(process.pid) if prefix else None)
    finally:
        if process.poll() is None:
            os.kill(innermost(process.pid), signal.SIGKILL)
            process.kill()
        process.communicate()


def innermost(pid: int) -> int:
    """The last descendant in a chain of single children (unshare, su, setpriv keep themselves in front)."""
    while True:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return pid
        if len(children) != 1:
            return pid
        pid = int(children[0])


def private_folders() -> set[str]:
    """Folders that sgtop makes for a target in /tmp."""
    return {e for e in os.listdir("/tmp") if re.fullmatch(r"sgtop-[0-9a-f]{16}", e)}


def attach(t: Target, **options: Any) -> Connection:
    """Attach the tiny agent."""
    options.setdefault("package", tiny_agent())
    return open_rank(t.rank, options=AttachOptions(**options))


def echo(connection: Connection, number: int = 1, timeout: float = 10) -> wire.Frame:
    """Ask the agent something and wait for its answer."""
    connection.send({"k": "cmd", "id": number, "op": "where", "args": {}})
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        for frame in connection.receive():
            if frame["k"] == "reply":
                return frame
        time.sleep(0.005)
    raise AssertionError("no reply")


def until_lost(connection: Connection, timeout: float = 10) -> str:
    """Receive until the connection breaks; why it did."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            connection.receive()
        except ConnectionLost as e:
            return str(e)
        time.sleep(0.01)
    raise AssertionError("the connection is still there")


def wait_for(what: Any, timeout: float = 10) -> None:
    """Wait until ``what()`` is true."""
    end = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
