"""``make demo``: sgtop attached to a real SGLang server with varied traffic, on a machine that has nothing of it yet.

Makes a venv, installs sgtop and SGLang (a tiny model, on the CPU), starts the server and the traffic, and opens sgtop.
When sgtop ends, everything that was started here ends too, and nothing else; so it does on Ctrl-C, when the terminal
goes, and when this process is killed. Standard library only, Python 3.10 and later.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from tools.keeper import Kept, die_with_parent
from tools.sglang_cpu.client import HttpError
from tools.sglang_cpu.install import InstallError, ensure, progress
from tools.sglang_cpu.places import cache
from tools.sglang_cpu.server import CpuServer, ServerError, free_port

REPO = Path(__file__).resolve().parent.parent


class Missing(RuntimeError):
    """Something this machine lacks; the text has the command that brings it."""


class Ended(BaseException):
    """A signal asks the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def check_machine() -> None:
    """Say what is missing before anything is installed.

    Raises:
        Missing: with the apt command.
    """
    packages = []
    probe = subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True)
    if probe.returncode:
        packages.append("python3-venv")
    if not any(shutil.which(c) for c in (os.environ.get("CC", "cc"), "gcc", "clang")):
        packages.append("gcc")  # the agent's native helper for kernel tracing is compiled when it is installed
    if packages:
        raise Missing(
            f"missing here: {', '.join(packages)}. On Debian and Ubuntu: apt-get install {' '.join(packages)}"
        )


def install_sgtop() -> Path:
    """A venv with this tree's sgtop, made anew when the tree changed; the ``sgtop`` command in it.

    Raises:
        Missing: pip failed; the text has its last lines.
    """
    venv = cache() / "demo"
    stamp, key = venv / "sgtop-install.txt", _tree()
    command = venv / "bin" / "sgtop"
    if stamp.exists() and stamp.read_text() == key:
        return command
    progress("sgtop: making a venv")
    shutil.rmtree(venv, ignore_errors=True)
    python = venv / "bin" / "python"
    steps = [
        [sys.executable, "-m", "venv", str(venv)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "./agent", "."],
    ]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_USER", "PIP_TARGET")}
    for step in steps:
        with tempfile.TemporaryFile("w+") as out:
            running = subprocess.Popen(step, cwd=REPO, env=env, stdout=out, stderr=subprocess.STDOUT)
            _show_until_done(running, f"sgtop: {'installing' if 'pip' in step else 'making a venv'}")
            if running.returncode:
                out.seek(0)
                lines = out.read().splitlines()[-15:]
                raise Missing("sgtop could not be installed:\n" + "\n".join(lines))
    stamp.write_text(key)
    return command


def _show_until_done(running: subprocess.Popen[bytes], what: str) -> None:
    start = time.monotonic()
    try:
        while True:
            try:
                running.wait(0.5)
                return
            except subprocess.TimeoutExpired:
                progress(f"{what} ({time.monotonic() - start:.0f} s)")
    except BaseException:
        running.kill()
        running.wait()
        raise


def _tree() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for folder in ("agent", "probes", "core", "tui"):
        for file in sorted((REPO / folder).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(REPO)).encode() + b"\0" + file.read_bytes())
    digest.update((REPO / "pyproject.toml").read_bytes())
    return digest.hexdigest()


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM, SIGHUP and SIGINT end the demo by an exception, so that what it started is ended in order."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def end(number: int, _: FrameType | None) -> None:
        for n in numbers:
            signal.signal(n, signal.SIG_IGN)  # once is enough: ending takes a few seconds
        raise Ended(number)

    before = [(n, signal.signal(n, end)) for n in numbers]
    try:
        yield
    finally:
        for n, handler in before:
            signal.signal(n, handler)


def _sgtop(command: list[str], interactive: bool) -> int:
    if interactive:
        # Ctrl-C belongs to sgtop while it runs: the terminal sends it to both.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def in_child() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent(signal.SIGTERM)  # which lets it give the terminal back

    child = subprocess.Popen(command, preexec_fn=in_child)
    try:
        return child.wait()
    except Ended:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def demo() -> int:
    """Run it; sgtop's exit status."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    check_machine()
    sgtop = install_sgtop()
    sglang = ensure()
    with ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="sgtop-demo-")))
        port = free_port()
        # Without --sleep-on-idle an idle scheduler keeps one core busy; on a small machine that is half of it.
        server = CpuServer(sglang, port=port, log=folder / "server.log", flags=["--sleep-on-idle"])
        started.enter_context(server)
        server.wait_healthy(say=progress)
        traffic = Kept(
            [sys.executable, "-m", "tools.sglang_cpu.traffic", server.url],
            log=folder / "traffic.log",
            env={**os.environ, "PYTHONPATH": str(REPO)},
            grace_s=1,
        )
        started.callback(traffic.stop)
        attach = [str(sgtop), "--attach", f":{port}"]
        progress("starting: " + " ".join(["sgtop", *attach[1:]]))
        if not interactive:
            time.sleep(5)  # let the traffic show in the two seconds that --once looks
            attach.append("--once")
        status = _sgtop(attach, interactive)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        progress("ending the server and the traffic")
    progress("")
    return status


def main() -> int:
    """The command line: no arguments."""
    try:
        with _signals():
            return demo()
    except (Missing, InstallError, ServerError, HttpError) as e:
        print(e, file=sys.stderr)
        return 1
    except Ended as e:
        return 128 + e.number


if __name__ == "__main__":
    sys.exit(main())
