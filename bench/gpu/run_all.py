"""Every check on a GPU host in few calls: starts the servers, runs what fits into the time, leaves them running.

    python bench/gpu/run_all.py --bundle .bundle/site.txz --out OUT [--budget 540] [--only gpu_time …] [--gpus 2]

Each GPU has a lane: its checks run one after the other, the lanes side by side. A check that fails or takes too long is
reported and the next one runs. Prints one JSON line a check, and writes each check's whole output into OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
sys.path.insert(0, str(REPO))

from tools.sglang_gpu import server  # noqa: E402  (found through the path above)

PARTS = ("agent", "probes", "core", "tui", "bench", ".")
SHARED = ("--mem-fraction-static", "0.9", "--max-total-tokens", "150000")
"""For servers that share a GPU: each takes what its weights and so many tokens need."""


@dataclass(frozen=True)
class Server:
    """One server: its model, port, and further flags for SGLang."""

    model: str
    port: int
    flags: tuple[str, ...] = ()


SERVERS = {
    "8b": Server("qwen3-8b", 30000),
    "8b-second": Server("qwen3-8b", 30100, ("--mem-fraction-static", "0.9", "--max-total-tokens", "450000")),
    "moe": Server("dsv2-lite", 30200, SHARED),
    "8b-eager": Server("qwen3-8b", 30300, (*SHARED, "--disable-cuda-graph")),
}


@dataclass(frozen=True)
class Check:
    """One check: the server it needs (None: a GPU and nothing else), its script, its most seconds, its lane of two."""

    server: str | None
    command: tuple[str, ...]
    seconds: float
    lane: int = 0


def _kernels(which: str, seconds: float, lane: int = 0) -> Check:
    return Check("8b", ("kernels_server.py", "--only", which), seconds, lane)


def _equal(name: str, bs: int, lane: int = 0) -> Check:
    return Check(name, ("equal.py", "--bs", str(bs)), 180, lane)


CHECKS: dict[str, Check] = {
    "equal_eager": _equal("8b-eager", 1),
    "equal_bs1": _equal("8b", 1),
    "equal_bs32": _equal("8b", 32),
    "equal_moe": _equal("moe", 8, 1),
    "leave": _kernels("leave", 60),
    "cycles": _kernels("cycles", 120, 1),
    "profile": _kernels("profile", 180, 1),
    "contention": Check("8b", ("contention.py",), 90),
    "attach": Check("8b", ("attach.py",), 90),
    "gpu_time": Check("8b", ("gpu_time.py",), 150),
    "throughput_bs1": Check("8b", ("throughput.py", "--bs", "1"), 200, 1),
    "throughput_bs32": Check("8b", ("throughput.py", "--bs", "32"), 200, 1),
    "kernels_windows": Check(
        "8b", ("kernels_throughput.py", "--mode", "windows", "--real", "--seconds", "10"), 470),
    "kernels_on": Check("8b", ("kernels_throughput.py", "--mode", "on", "--seconds", "1"), 120),
    "kernels_profile": Check("8b", ("kernels_throughput.py", "--mode", "profile", "--seconds", "0.5"), 270, 1),
    "record": Check("8b", ("record_sessions.py", "--seconds", "15"), 150, 1),
    "replay": Check(None, ("kernels_replay.py", "--only", "cycles", "eager", "profile"), 120, 1),
    "soak": Check(None, ("kernels_replay.py", "--only", "soak", "--budget", "250"), 260, 1),
}  # fmt: skip


def run(name: str, seconds: float, out: Path, gpu: int, server_name: str | None) -> dict[str, object]:
    """Run one check; its JSON line, or why there is none."""
    script, *arguments = CHECKS[name].command
    env = {
        **os.environ,
        "PYTHONPATH": ":".join([*(str(REPO / p) for p in PARTS), str(server.STATE / "site")]),
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "SGTOP_BENCH_PORT": str(SERVERS[server_name].port if server_name else 0),
        "SGTOP_BENCH_OUT": str(out),
    }
    start = time.monotonic()
    log = out / f"{name}.txt"
    with open(log, "w") as file:
        try:
            done = subprocess.run(
                [sys.executable, str(HERE / script), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                env=env,
                cwd=REPO,
            )
            status = f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            status = f"stopped after {seconds:.0f} s"
    lines = log.read_text().splitlines()
    took = round(time.monotonic() - start, 1)
    if lines and lines[-1].startswith("{"):
        return {"check": name, "seconds": took, **json.loads(lines[-1])}
    outcome = {} if status == "exit status 0" else {"failed": status}
    return {"check": name, "seconds": took, **outcome, "last": lines[-5:]}


class Lane(threading.Thread):
    """One GPU: its servers come up side by side, its checks run one after the other."""

    def __init__(self, gpu: int, names: list[str], end: float, given: argparse.Namespace, site: Path) -> None:
        super().__init__()
        self.gpu, self.names, self.end, self.given, self.site = gpu, names, end, given, site
        self.failed = False
        self._ready: dict[str, threading.Thread] = {}

    def server_of(self, check: str) -> str | None:
        """On a second GPU the 8B model is the second server."""
        name = CHECKS[check].server
        return "8b-second" if name == "8b" and self.gpu else name

    def run(self) -> None:
        """See the class."""
        for check in self.names:
            name = self.server_of(check)
            if name is not None and name not in self._ready:
                self._ready[name] = threading.Thread(target=self._start, args=(name,))
                self._ready[name].start()
        for check in self.names:
            name = self.server_of(check)
            if name is not None:
                self._ready[name].join()
            left = self.end - time.monotonic() - 10
            if name is not None and server.running(SERVERS[name].port) is None:
                outcome: dict[str, object] = {"check": check, "failed": f"no server {name}"}
            elif left < 30:
                outcome = {"check": check, "failed": "no time left; run it again with --only"}
            else:
                outcome = run(check, min(CHECKS[check].seconds, left), self.given.out, self.gpu, name)
            self.failed |= bool(outcome.get("failed"))
            print(json.dumps(outcome), flush=True)

    def _start(self, name: str) -> None:
        it = SERVERS[name]
        if server.running(it.port) is not None:
            return
        folder = server.STATE / "witness"
        folder.mkdir(exist_ok=True)
        env = {
            "SGTOP_WITNESS": str(folder),
            "PYTHONPATH": str(REPO / "tools" / "witness"),
            "CUDA_VISIBLE_DEVICES": str(self.gpu),
        }
        flags = ["--served-model-name", it.model, *it.flags]
        begin = time.monotonic()
        limit = min(330.0, self.end - time.monotonic() - 60)
        outcome: dict[str, object] = {"check": "start", "server": name}
        try:
            server.start(self.site, it.model, it.port, flags=flags, env=env, timeout_s=limit)
        except server.GpuServerError as e:
            self.failed = True
            outcome["failed"] = str(e)[-3000:]
        print(json.dumps({**outcome, "seconds": round(time.monotonic() - begin, 1)}), flush=True)


def main() -> int:
    """The command line; exit status 1 when a check failed or did not fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--only", nargs="+", choices=sorted(CHECKS), default=list(CHECKS))
    parser.add_argument("--stop", action="store_true", help="end the servers afterwards")
    given = parser.parse_args()
    end = time.monotonic() + given.budget
    given.out.mkdir(parents=True, exist_ok=True)
    server.STATE.mkdir(parents=True, exist_ok=True)
    site = server.unpack(given.bundle)
    lanes = []
    for gpu in range(given.gpus):
        names = [n for n in given.only if given.gpus == 1 or CHECKS[n].lane == gpu]
        lanes.append(Lane(gpu, names, end, given, site))
    for kind in {it.model for it in SERVERS.values()}:
        server.prepare(site, kind)
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    if given.stop:
        for it in SERVERS.values():
            server.stop(it.port)
    return int(any(lane.failed for lane in lanes))


if __name__ == "__main__":
    sys.exit(main())
