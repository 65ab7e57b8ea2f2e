"""Starts and stops a real SGLang server on the CPU; nothing of it outlives its owner."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from tools.keeper import Kept, descendants
from tools.sglang_cpu.client import Client
from tools.sglang_cpu.install import Install
from tools.sglang_cpu.places import cache

STUBS = Path(__file__).parent / "stubs"
MODEL = Path(__file__).parent / "model.py"


class ServerError(RuntimeError):
    """The server did not come up; the text has the end of its log."""


def model(install: Install, arch: str = "llama", *, layers: int = 2, hidden: int = 64) -> Path:
    """The folder of a tiny model, made on first use."""
    out = cache() / "models" / f"{arch}-{layers}x{hidden}"
    if not (out / "config.json").exists():  # written last
        part = out.with_name(f"{out.name}.{os.getpid()}.part")
        sizes = ["--layers", str(layers), "--hidden", str(hidden)]
        subprocess.run([install.python, MODEL, part, "--arch", arch, *sizes], check=True)
        try:
            part.rename(out)
        except OSError:  # another process was quicker
            shutil.rmtree(part)
    return out


_held: list[IO[str]] = []
"""Locks of the ports that this process has chosen; they go with it."""


def free_port(first: int = 30000, last: int = 30999) -> int:
    """A port of the range on which nothing listens, and that no other run on this machine has chosen.

    A server binds its port half a minute after it was started: without the lock two runs would take the same one.

    Raises:
        ServerError: there is none.
    """
    folder = Path(tempfile.gettempdir()) / f"sgtop-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for port in range(first, last + 1):
        lock = open(folder / str(port), "w")  # noqa: SIM115  (held as long as this process lives)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return port
    raise ServerError(f"no free port between {first} and {last}")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment a server starts in."""
    drop = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {k: v for k, v in os.environ.items() if k not in drop}
    env |= {
        "PYTHONPATH": str(STUBS),
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # Two OpenMP threads on a machine of two busy cores make a decode step many times slower.
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for name, value in (extra or {}).items():
        env[name] = f"{value}:{env[name]}" if name == "PYTHONPATH" else value
    return env


def command(install: Install, model_dir: Path, port: int, flags: Sequence[str] = ()) -> list[str]:
    """The command line of a server; later flags win over the ones given here."""
    return [
        *(str(install.python), "-m", "sglang.launch_server"),
        *("--model-path", str(model_dir), "--load-format", "dummy", "--dtype", "float32"),
        *("--device", "cpu", "--attention-backend", "torch_native"),
        *("--mem-fraction-static", "0.1", "--max-total-tokens", "16384", "--chunked-prefill-size", "256"),
        *("--host", "127.0.0.1", "--port", str(port), "--enable-metrics"),
        *flags,
    ]


class CpuServer:
    """A server under a keeper. ``pid`` is its main process; use as a context manager, or call ``stop``."""

    def __init__(
        self,
        install: Install,
        *,
        port: int,
        log: Path,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        tp: int = 1,
    ) -> None:
        """Start it; ``wait_healthy`` waits until it serves. ``prefix`` stands before the command: ``taskset 1``."""
        self.install = install
        self.port = port
        self.log = log
        extra = dict(env or {})
        flags = list(flags)
        if tp > 1:
            flags += ["--tp-size", str(tp)]
            # Without it SGLang asserts that there are as many NUMA nodes as ranks.
            extra.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(str(i % (os.cpu_count() or 1)) for i in range(tp)))
        line = [*prefix, *command(install, model(install), port, flags)]
        self.started = time.monotonic()
        self._kept = Kept(line, log=log, env=environment(extra))

    @property
    def pid(self) -> int:
        """The first process of the command: the server's main process, or the prefix's."""
        return self._kept.pid

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> Client:
        """A client of this server."""
        return Client(self.url)

    def wait_healthy(self, timeout_s: float = 240.0, say: Callable[[str], None] = lambda _: None) -> None:
        """Wait until ``/health`` answers 200, which includes SGLang's own warm-up.

        Raises:
            ServerError: it ended, or was not healthy in time.
        """
        client = self.client
        while not client.healthy():
            waited = time.monotonic() - self.started
            say(f"SGLang {self.install.version}: starting on port {self.port} ({waited:.0f} s)")
            if self._kept.poll() is not None:
                raise ServerError(f"the server ended while it started:\n{self.log_tail()}")
            if waited > timeout_s:
                raise ServerError(f"the server was not healthy after {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.5)

    def alive(self) -> bool:
        """Its first process has not ended."""
        return self._kept.poll() is None

    def schedulers(self) -> list[int]:
        """Pids of the scheduler processes, in rank order."""
        return processes(self.pid, "sglang::scheduler")

    def log_tail(self, lines: int = 60) -> str:
        """The end of the log, without the lines of single steps; very long ones (its arguments) are cut."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        kept = [line[:400] for line in text.splitlines() if " batch [" not in line and "POST /generate" not in line]
        return "\n".join(kept[-lines:])

    def kill(self) -> None:
        """SIGKILL to the main process; the keeper ends what it leaves behind."""
        os.kill(self.pid, signal.SIGKILL)
        self._kept.wait(30)

    def stop(self) -> None:
        """SIGTERM, and after the grace time SIGKILL; returns when no process is left."""
        self._kept.stop()

    def __enter__(self) -> CpuServer:
        """The server."""
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        """Stop it."""
        self.stop()


def processes(root: int, title: str) -> list[int]:
    """Pids below ``root`` whose command line starts with ``title``, sorted by it (so by rank)."""
    found = []
    for pid in descendants(root):
        try:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if name.startswith(title):
            found.append((name, pid))
    return [pid for _, pid in sorted(found)]
