"""From the command to the first data, and how long the scheduler stands still for it.

Three figures, each over many attaches to a server that decodes all the time: the whole command (a new ``sgtop`` process
until its first line with steps in it), the attach alone (from ``open_rank`` to the first frame with events), and the
longest gap between steps while it happened, as the witness in the scheduler saw it.

    flock /tmp/sgtop-bench.lock python bench/attach_latency.py
"""

from __future__ import annotations

import argparse
import json
import selectors
import subprocess
import threading
import time

import numpy as np
from common import REPO, SGTOP, Bench, cpu_server, header, quantiles, result, say
from sgtop_probes.attach import open_rank
from sgtop_probes.resolve import resolve


def command(port: int) -> float:
    """Milliseconds from starting the command to its first snapshot with steps."""
    start = time.monotonic()
    running = subprocess.Popen(
        [*SGTOP, "--attach", f":{port}", "--json", "--for", "10s"], stdout=subprocess.PIPE, text=True, cwd=REPO
    )
    assert running.stdout is not None
    try:
        for line in running.stdout:
            if all(rank["modes"] for rank in json.loads(line)["ranks"]):
                return (time.monotonic() - start) * 1e3
        raise RuntimeError("sgtop ended without showing a step")
    finally:
        running.terminate()
        running.wait()
        running.stdout.close()


def attach(bench: Bench) -> tuple[float, float]:
    """(ms from open_rank to the first events, longest gap between steps meanwhile in ms)."""
    rank = resolve(f":{bench.server.port}").ranks[0]
    first = bench.witness.count()
    start = time.monotonic()
    connection = open_rank(rank)
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        while not any(frame["k"] == "ev" for frame in connection.receive()):
            selector.select(0.5)
    took = (time.monotonic() - start) * 1e3
    time.sleep(0.05)
    gaps = bench.witness.steps(first).gaps_ms()
    connection.close()
    return took, float(gaps.max())


def decode(bench: Bench, stop: threading.Event) -> None:
    """Keep the scheduler busy."""
    n = 0
    while not stop.is_set():
        n += 1
        bench.client.generate([6 + (n * 7 + i) % 250 for i in range(20)], 400)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attaches", type=int, default=50)
    parser.add_argument("--commands", type=int, default=20)
    parser.add_argument("--version", default="0.5.20")
    given = parser.parse_args()
    header()
    stop = threading.Event()
    with cpu_server(given.version, split=True) as bench:
        load = threading.Thread(target=decode, args=(bench, stop))
        load.start()
        try:
            first = bench.witness.count()
            time.sleep(3)
            usual = bench.witness.steps(first).gaps_ms()
            took, stood = [], []
            for _ in range(given.attaches):
                ms, gap = attach(bench)
                took.append(ms)
                stood.append(gap)
                time.sleep(0.3)
            whole = [command(bench.server.port) for _ in range(given.commands)]
        finally:
            stop.set()
            load.join()
    say("usual gap", quantiles(usual, "ms"))
    say("longest gap at attach", quantiles(stood, "ms"))
    say("attach to first data", quantiles(took, "ms"))
    say("command to first data", quantiles(whole, "ms"))
    result(
        bench="attach_latency",
        attach_p95_ms=float(np.percentile(took, 95)),
        command_p95_ms=float(np.percentile(whole, 95)),
        gap_at_attach_p50_ms=float(np.median(stood)),
        usual_gap_p50_ms=float(np.median(usual)),
    )


if __name__ == "__main__":
    main()
