"""What the benches share: who measured what and when, pinning, a witness without sgtop, sgtop as a user runs it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

REPO = Path(__file__).resolve().parent.parent
WITNESS = REPO / "tools" / "witness"
PARTS = ("agent", "probes", "core", "tui")
# On a host where nothing is installed (bench/gpu), sgtop runs from the tree.
sys.path[:0] = [str(REPO), str(WITNESS), *(str(REPO / part) for part in PARTS)]

import sgtop_witness  # noqa: E402  (found through the path above, as the server finds it)

from tools.keeper import descendants  # noqa: E402
from tools.sglang_cpu.client import Client  # noqa: E402
from tools.sglang_cpu.install import ensure  # noqa: E402
from tools.sglang_cpu.server import CpuServer, free_port  # noqa: E402

Floats = npt.NDArray[np.float64]
SGTOP = (sys.executable, "-m", "sgtop_tui")


def header() -> None:
    """Print the machine, the date and the command, so that a figure can be traced."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Begun with & in a script: what is started here would inherit that, and not end on the Ctrl-C it is sent.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    commit = subprocess.run(["git", "-C", REPO, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    say("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    say("machine", f"{model}, {os.cpu_count()} CPUs, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}")
    if gpu := _gpu():
        say("GPU", gpu)
    say("python", platform.python_version())
    say("commit", commit.stdout.strip() or "unknown")
    say("command", shlex.join(["python", *sys.argv]))


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return "; ".join(subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip().splitlines())
    except (OSError, subprocess.TimeoutExpired):
        return ""


def say(name: str, value: object) -> None:
    """One line of a report."""
    print(f"{name:22s} {value}", flush=True)


def result(**figures: Any) -> None:
    """The machine-readable last line."""
    print(json.dumps(figures), flush=True)


def quantiles(values: Iterable[float], unit: str) -> str:
    """``n=…, p50 …, p95 …, p99 …, max …`` in words."""
    a = np.asarray(list(values), float)
    p50, p95, p99 = np.percentile(a, [50, 95, 99])
    return f"n={a.size}, p50 {p50:.3f}, p95 {p95:.3f}, p99 {p99:.3f}, max {a.max():.3f} {unit}"


def ratio(pairs: Sequence[tuple[float, float]], rounds: int = 20_000) -> tuple[float, float, float]:
    """Median of b ÷ a over the pairs (a, b), and its 95 % interval by the bootstrap over pairs."""
    each = np.array([b / a for a, b in pairs])
    draws = np.random.default_rng(1).choice(each, (rounds, each.size))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(np.median(each)), float(low), float(high)


def effect(rows: Sequence[tuple[bool, float, float]]) -> tuple[float, float, float]:
    """Rate on ÷ off, with its 95 % interval, where the rate also depends on a position (the length of a context).

    Args:
        rows: (on, position, rate) of each measurement. log(rate) is fitted by a cubic of the position and a step for
            "on": unlike pairs, that needs no equal distances, and attaching takes longer than detaching.
    """
    on, x, rate = (np.array(column, float) for column in zip(*rows, strict=True))
    x = (x - x.mean()) / max(float(x.std()), 1e-9)
    model = np.column_stack([on, np.ones_like(x), x, x**2, x**3])
    best = np.linalg.lstsq(model, np.log(rate), rcond=None)[0]
    rest = np.log(rate) - model @ best
    free = len(rate) - model.shape[1]
    error = float(np.sqrt(rest @ rest / free * np.linalg.inv(model.T @ model)[0, 0]))
    t = 1.96 + 2.4 / free  # Student's t at 97.5 %, to 1 % from ten degrees of freedom on
    return float(np.exp(best[0])), float(np.exp(best[0] - t * error)), float(np.exp(best[0] + t * error))


def pin(pid: int, cpus: set[int]) -> None:
    """Let every thread of a process run on ``cpus`` only; threads and children made later inherit it."""
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), cpus)


@dataclass(frozen=True)
class Steps:
    """Rows of the witness: numpy columns, one element a step."""

    ct: npt.NDArray[np.int64]
    t0: npt.NDArray[np.int64]
    t1: npt.NDArray[np.int64]
    mode: npt.NDArray[np.int64]
    bs: npt.NDArray[np.int64]

    def gaps_ms(self) -> Floats:
        """From the return of run_batch to the next entry, in ms: the time the main thread spent between steps."""
        return (self.t0[1:] - self.t1[:-1]) / 1e6


class Witness:
    """Reads what ``sgtop_witness`` writes for one scheduler."""

    kept = sgtop_witness.ROWS
    """Steps that its file holds."""

    def __init__(self, folder: Path, pid: int) -> None:
        """The file must be there: the scheduler has run a batch."""
        self._file = np.memmap(folder / f"{pid}.steps", np.int64, "r")

    def count(self) -> int:
        """Steps so far."""
        return int(self._file[0])

    def steps(self, first: int, last: int | None = None) -> Steps:
        """Steps number ``first`` up to ``last`` (now)."""
        width = sgtop_witness.ROW.size // 8
        rows = self._file[width:].reshape(-1, width)
        index = np.arange(first, self.count() if last is None else last) % sgtop_witness.ROWS
        return Steps(*(np.array(rows[index, i]) for i in range(width)))


@dataclass
class Bench:
    """A server under test."""

    server: CpuServer
    client: Client
    schedulers: list[int]
    witness: Witness
    folder: Path
    """What the witness writes."""


@contextmanager
def cpu_server(
    version: str = "0.5.20", *, flags: Sequence[str] = (), tp: int = 1, split: bool = False
) -> Iterator[Bench]:
    """A real server with the witness in it. ``split``: the scheduler on the last CPU, everything else on the others.

    This process is pinned to the others too, and what it starts later inherits that.
    """
    with tempfile.TemporaryDirectory(prefix="sgtop-bench-") as tmp:
        folder = Path(tmp)
        env = {"SGTOP_WITNESS": tmp, "PYTHONPATH": str(WITNESS)}
        with CpuServer(
            ensure(version), port=free_port(31500, 31699), log=folder / "log", flags=flags, env=env, tp=tp
        ) as server:
            server.wait_healthy()
            schedulers = server.schedulers()
            if split:
                last = (os.cpu_count() or 2) - 1
                rest = set(range(last)) or {0}
                for pid in [server.pid, *descendants(server.pid)]:
                    pin(pid, {last} if pid in schedulers else rest)
                pin(os.getpid(), rest)
            yield Bench(server, server.client, schedulers, Witness(folder, schedulers[0]), folder)


@contextmanager
def attached(port: int, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """``sgtop --attach :PORT --json`` beside, live on every rank; ended by Ctrl-C, as a person would.

    Raises:
        RuntimeError: it did not get live within 20 s; the text has what it said.
    """
    command = [*SGTOP, "--attach", f":{port}", "--json", *flags]
    with tempfile.TemporaryFile("w+") as err:
        env = {**os.environ, "PYTHONPATH": ":".join(str(REPO / part) for part in PARTS)}
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, cwd=REPO, env=env)
        assert running.stdout is not None
        try:
            end = time.monotonic() + 20
            live = False
            while not live and time.monotonic() < end and (line := running.stdout.readline()):
                live = all(rank["state"] == "live" for rank in json.loads(line)["ranks"])
            if not live:
                err.seek(0)
                raise RuntimeError(f"sgtop did not get live: {err.read()[-2000:]}")
            drain = subprocess.Popen(["cat"], stdin=running.stdout, stdout=subprocess.DEVNULL)
            running.stdout.close()
            yield running
            running.send_signal(signal.SIGINT)
            running.wait(20)
            drain.wait(20)
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()


def alternate(pairs: int, a: Callable[[], float], b: Callable[[], float]) -> list[tuple[float, float]]:
    """Measure A B B A A B B A …: pairs (a, b) in which neither always comes first."""
    out = []
    for i in range(pairs):
        if i % 2 == 0:
            x = a()
            y = b()
        else:
            y = b()
            x = a()
        out.append((x, y))
    return out
