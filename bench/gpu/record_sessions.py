"""Records the embedded sessions of a GPU server: decode-bound, prefill-bound, contention, eager fallback.

On the GPU host, with a server that was started with `--served-model-name NAME` and `--cuda-graph-max-bs 64`:

    python bench/gpu/record_sessions.py --attach :30000 --url http://127.0.0.1:30000 --out OUT   # or run_all.py

Loads are made of token ids, so that the server needs no tokenizer; each scene begins and ends with an empty server.
Kernel windows are on where the session offers them. Every file must stay under 1 MB; copy them to
core/sgtop_core/recording/embedded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), *(str(REPO / p) for p in ("agent", "probes", "core", "tui", "bench"))]

from record_demos import Scene, check, neighbour, nothing, record  # noqa: E402  (found through the path above)


@dataclass
class Load:
    """Requests in flight: ``at_once`` of them, each ``prompt`` tokens in and ``tokens`` out, again and again."""

    url: str
    at_once: int
    prompt: int
    tokens: int

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(i,), daemon=True) for i in range(self.at_once)]
        for t in self._threads:
            t.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._post("/abort_request", {"abort_all": True})
        for t in self._threads:
            t.join(60)

    def _loop(self, seed: int) -> None:
        chosen = random.Random(seed)
        while not self._stop.is_set():
            ids = [chosen.randrange(100, 20_000) for _ in range(self.prompt)]
            sampling = {"max_new_tokens": self.tokens, "ignore_eos": True, "temperature": 0}
            try:
                self._post("/generate", {"input_ids": ids, "sampling_params": sampling})
            except (urllib.error.URLError, TimeoutError):
                self._stop.wait(0.2)

    def _post(self, path: str, body: object) -> None:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as r:
            r.read()


def main() -> None:
    """Record what was named, or everything."""
    p = argparse.ArgumentParser(description=main.__doc__)
    port = os.environ.get("SGTOP_BENCH_PORT", "30000")
    p.add_argument("--attach", default=f":{port}")
    p.add_argument("--url", default=f"http://127.0.0.1:{port}")
    p.add_argument("--out", type=Path, default=Path(os.environ.get("SGTOP_BENCH_OUT", ".")))
    p.add_argument("--seconds", type=float, default=30.0)
    p.add_argument("--settle", type=float, default=6.0, help="seconds of load before a recording begins")
    p.add_argument("names", nargs="*")
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    s = args.seconds
    plan: list[tuple[Scene, Callable[[], Load]]] = [
        (Scene("decode-bound", "H200, 8B, 32 running: decode with CUDA graphs, healthy", 10, s, nothing),
         lambda: Load(args.url, 32, 64, 30_000)),
        (Scene("contention", "H200, 8B, 1 running: a busy process takes the scheduler's CPU", 20, 1.5 * s, neighbour),
         lambda: Load(args.url, 1, 64, 30_000)),
        (Scene("eager-fallback", "H200, 8B, 96 running: more than the largest captured graph (64)", 30, s, nothing),
         lambda: Load(args.url, 96, 64, 30_000)),
        (Scene("prefill-bound", "H200, 8B: prompts of 8,000 tokens, one token out", 35, s, nothing),
         lambda: Load(args.url, 8, 8_000, 1)),
    ]  # fmt: skip
    for scene, load in plan:
        if args.names and scene.name not in args.names:
            continue
        with load():
            time.sleep(args.settle)
            path = record(scene, args.attach, args.out, kernels="windows")
        check(path)
        time.sleep(3)


if __name__ == "__main__":
    main()
