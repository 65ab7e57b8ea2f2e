"""sgtop attached for a long time to a server with varied traffic: memory and CPU of both sides, and what was lost.

flock /tmp/sgtop-bench.lock python bench/soak.py --minutes 30
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

import psutil
from common import attached, cpu_server, header, result, say

from tests.server.traces import from_inside
from tests.server.traffic import counters
from tools.sglang_cpu.traffic import Traffic


def main() -> None:
    """Run and print a line a minute; exit status 1 when memory grew or a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--version", default="0.5.20")
    given = parser.parse_args()
    header()
    client_mb, server_mb, shares = [], [], []
    with cpu_server(given.version) as bench:
        stop = threading.Event()
        traffic = Traffic(bench.client, stop)
        load = threading.Thread(target=traffic.run)
        load.start()
        try:
            scheduler = psutil.Process(bench.schedulers[0])
            time.sleep(60)  # SGLang's own first allocations
            before = from_inside(scheduler.pid, bench.folder)
            with attached(bench.server.port) as sgtop:
                own = psutil.Process(sgtop.pid)
                own.cpu_percent()
                end = time.monotonic() + given.minutes * 60
                while time.monotonic() < end:
                    time.sleep(min(60.0, max(1.0, end - time.monotonic())))
                    client_mb.append(own.memory_info().rss / 1e6)
                    server_mb.append(scheduler.memory_info().rss / 1e6)
                    shares.append(own.cpu_percent() / 100)
                    now = f"sgtop {client_mb[-1]:.1f} MB, {shares[-1]:.1%} of a core; scheduler {server_mb[-1]:.1f} MB"
                    say(f"minute {len(client_mb)}", f"{now}; {counters(bench.client).decode} tokens decoded")
        finally:
            stop.set()
            load.join()
        grown = from_inside(scheduler.pid, bench.folder).grown_since(before, anonymous_slack_kb=256 * 1024)
    # The windows of ten minutes are full after ten; from then on nothing may grow.
    settled = client_mb[min(12, len(client_mb) // 2) :]
    client_growth = settled[-1] - settled[0]
    say("requests", f"{traffic.answered} answered, {traffic.failed} failed")
    say("left behind", "; ".join(grown) or "nothing")
    result(
        bench="soak",
        minutes=given.minutes,
        client_mb_end=round(client_mb[-1], 1),
        client_growth_mb=round(client_growth, 2),
        client_cpu_share=round(sum(shares) / len(shares), 4),
        scheduler_growth_mb=round(server_mb[-1] - server_mb[0], 1),
        failed_requests=traffic.failed,
        left_behind=grown,
    )
    sys.exit(bool(traffic.failed or client_growth > 5 or grown))


if __name__ == "__main__":
    main()
