"""Every check on a GPU host in one call: starts the server, runs what fits into the time, leaves the server running.

    python bench/gpu/run_all.py --bundle .bundle/site.txz --out OUT [--budget 540] [--only gpu_time …]

A check that fails or takes too long is reported and the next one runs. Prints one JSON line a check, and writes each
check's whole output into OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
sys.path.insert(0, str(REPO))

from tools.sglang_gpu import server  # noqa: E402  (found through the path above)

PORT = 30000
CHECKS: dict[str, tuple[list[str], float]] = {
    "attach": (["attach.py"], 90),
    "gpu_time": (["gpu_time.py"], 150),
    "throughput_bs1": (["throughput.py", "--bs", "1"], 200),
    "throughput_bs32": (["throughput.py", "--bs", "32"], 200),
}
"""Name → (script and arguments, seconds it may take)."""


def run(name: str, seconds: float, out: Path) -> dict[str, object]:
    """Run one check; its JSON line, or why there is none."""
    script, *arguments = CHECKS[name][0]
    env = {
        **os.environ,
        "PYTHONPATH": ":".join(str(REPO / p) for p in ("agent", "probes", "core", "tui", "bench", ".")),
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
    return {"check": name, "seconds": took, "failed": status, "last": lines[-5:]}


def main() -> int:
    """The command line; exit status 1 when a check failed or did not fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument("--model", default="qwen3-8b")
    parser.add_argument("--only", nargs="+", choices=sorted(CHECKS), default=list(CHECKS))
    parser.add_argument("--stop", action="store_true", help="end the server afterwards")
    given = parser.parse_args()
    end = time.monotonic() + given.budget
    given.out.mkdir(parents=True, exist_ok=True)
    server.STATE.mkdir(parents=True, exist_ok=True)
    failed = False
    if server.running(PORT) is None:
        site = server.unpack(given.bundle)
        folder = server.STATE / "witness"
        folder.mkdir(exist_ok=True)
        env = {"SGTOP_WITNESS": str(folder), "PYTHONPATH": str(REPO / "tools" / "witness")}
        start = time.monotonic()
        try:
            server.start(site, given.model, PORT, env=env, timeout_s=min(300.0, given.budget * 0.6))
        except server.GpuServerError as e:
            print(json.dumps({"check": "start", "failed": str(e)}), flush=True)
            return 1
        took = round(time.monotonic() - start, 1)
        print(json.dumps({"check": "start", "seconds": took, "model": given.model}), flush=True)
    for name in given.only:
        left = end - time.monotonic() - 10
        if left < 30:
            outcome: dict[str, object] = {"check": name, "failed": "no time left; run it again with --only"}
        else:
            outcome = run(name, min(CHECKS[name][1], left), given.out)
        failed |= "failed" in outcome
        print(json.dumps(outcome), flush=True)
    if given.stop:
        server.stop(PORT)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
