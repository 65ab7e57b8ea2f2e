"""Forwards' GPU time by sgtop's events against torch's profiler, for the same steps of a real server.

    python bench/gpu/against_profiler.py PORT [--bs 32] [--steps 20]

Attaches to the server's first rank, keeps BS requests decoding, asks SGLang to profile STEPS steps and compares, mode
by mode, the median of ``gpu1 - gpu0`` with the same forwards in the trace: the span of the kernels that SGLang's own
``step[…]`` annotation launched, less what was copied before the first kernel (sgtop starts its clock after the batch
is loaded). Exit code 1 when a mode with at least five forwards differs by more than 5 %.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from array import array
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("agent", "probes")]

from sgtop_probes import resolve  # noqa: E402
from sgtop_probes.attach import ladder  # noqa: E402

LIMIT = 0.05


def post(port: int, path: str, body: dict[str, Any], timeout: float = 600) -> bytes:
    """POST to the server."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return bytes(reply.read())


def decode_load(port: int, bs: int) -> None:
    """``bs`` requests that decode until they are aborted."""

    def one() -> None:
        ids = [random.randrange(10, 900) for _ in range(64)]
        sampling = {"max_new_tokens": 30000, "temperature": 0, "ignore_eos": True}
        try:
            post(port, "/generate", {"input_ids": ids, "sampling_params": sampling})
        except OSError:
            return

    for _ in range(bs):
        threading.Thread(target=one, daemon=True).start()


def from_trace(path: Path) -> dict[str, list[float]]:
    """Mode → GPU milliseconds of each ``step[MODE …]`` in a torch trace."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as f:
        events = json.load(f)["traceEvents"]
    spans = [e for e in events if e.get("cat") == "gpu_user_annotation" and str(e.get("name", "")).startswith("step[")]
    kernels = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "kernel")
    out: dict[str, list[float]] = collections.defaultdict(list)
    for span in spans:
        begin, end = span["ts"], span["ts"] + span["dur"]
        inside = [(a, b) for a, b in kernels if begin <= a and b <= end + 1]
        if inside:
            mode = span["name"][5:].split()[0].rstrip("]")
            out[mode].append((max(b for _, b in inside) - inside[0][0]) / 1e3)
    return out


def main() -> int:
    """Run and print; 1 when a mode differs too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    server = resolve.resolve(f":{args.port}")
    connection = ladder.open_rank(server.ranks[0])
    names = {number: name for name, number in connection.hello["modes"].items()}
    print("attached:", connection.way, connection.hello["sglang"], connection.hello["caps"])
    decode_load(args.port, args.bs)
    columns: dict[str, array[int]] = collections.defaultdict(lambda: array("q"))

    def read(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for frame in connection.receive():
                if frame["k"] == "ev" and frame["e"] == "forward":
                    for name, raw in frame["c"].items():
                        columns[name].frombytes(bytes(raw))
            time.sleep(0.02)

    read(6.0)
    with tempfile.TemporaryDirectory() as folder:
        body = {"num_steps": args.steps, "activities": ["CPU", "GPU"], "with_stack": False, "output_dir": folder}
        begin = time.monotonic_ns()
        stopper = threading.Thread(target=post, args=(args.port, "/start_profile", body), daemon=True)
        stopper.start()
        traces: list[Path] = []
        for _ in range(120):
            read(0.5)
            traces = sorted(Path(folder).rglob("*.trace.json*"))
            if traces and traces[0].stat().st_size and not stopper.is_alive():
                break
        end = time.monotonic_ns()
        read(1.0)
        profiled = from_trace(traces[0])
    post(args.port, "/abort_request", {"abort_all": True})
    connection.close()
    ours: dict[str, list[float]] = collections.defaultdict(list)
    for i in range(len(columns["ct"])):
        if begin <= columns["t0"][i] <= end and columns["runner"][i] == 0 and columns["gpu0"][i] > 0:
            ours[names[columns["mode"][i]]].append((columns["gpu1"][i] - columns["gpu0"][i]) / 1e6)
    bad = False
    for mode, theirs in sorted(profiled.items()):
        if not ours.get(mode):
            print(f"{mode}: {len(theirs)} in the trace, none of ours")
            continue
        a, b = statistics.median(ours[mode]), statistics.median(theirs)
        difference = a / b - 1
        print(f"{mode}: sgtop {a:.3f} ms ({len(ours[mode])}), profiler {b:.3f} ms ({len(theirs)}), {difference:+.1%}")
        bad = bad or (len(theirs) >= 5 and abs(difference) > LIMIT)
    return 1 if bad or not profiled else 0


if __name__ == "__main__":
    sys.exit(main())
