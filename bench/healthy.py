"""No finding on a healthy server under load: sgtop beside it for minutes, every alert that came is printed.

The scheduler has a CPU of its own, everything else the others. Whoever works on that CPU meanwhile is found, rightly:
run it alone.

    flock /tmp/sgtop-bench.lock python bench/healthy.py --minutes 10
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from common import PARTS, REPO, SGTOP, cpu_server, header, result, say

from tests.server.traffic import Background


class Watch:
    """``sgtop --json`` as a user runs it; keeps every alert that was active in a line, and how it last was."""

    def __init__(self, port: int) -> None:
        """Start it."""
        env = {**os.environ, "PYTHONPATH": ":".join(str(REPO / part) for part in PARTS)}
        command = [*SGTOP, "--attach", f":{port}", "--json"]
        self._run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO, env=env)
        self.alerts: dict[tuple[str, str | None], dict[str, Any]] = {}
        self.lines = self.live = self.steps = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._run.stdout is not None
        for line in self._run.stdout:
            shot = json.loads(line)
            self.lines += 1
            self.live += shot["state"] == "live"
            self.steps = max([self.steps, *(r["last_step"] or 0 for r in shot["ranks"])])
            for alert in shot["alerts"]:
                if alert["active"]:
                    key = alert["id"], alert["rank"]
                    if key not in self.alerts:
                        say("alert", f"{alert['id']}: {alert['title']}")
                    self.alerts[key] = alert

    def stop(self) -> None:
        """End it by Ctrl-C and read what is left."""
        self._run.send_signal(signal.SIGINT)
        try:
            self._run.wait(20)
        except subprocess.TimeoutExpired:
            self._run.kill()
        self._reader.join()


def main() -> None:
    """Run and print; exit status 1 when there was an alert, a request failed, or sgtop was not live all the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--version", default="0.5.20")
    given = parser.parse_args()
    header()
    with (
        cpu_server(given.version, flags=["--sleep-on-idle"], split=True) as bench,
        Background(bench.client, workers=3) as traffic,
    ):
        time.sleep(10)  # the first requests compile and allocate
        watch = Watch(bench.server.port)
        try:
            end = time.monotonic() + given.minutes * 60
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(60.0, left))
                say("so far", f"{watch.lines} snapshots, {len(watch.alerts)} alerts, step {watch.steps}")
        finally:
            watch.stop()
    for alert in watch.alerts.values():
        say(f"{alert['severity']} {alert['id']}", f"{alert['title']} | {alert['evidence']} | {alert['next']}")
    unseen = watch.lines - watch.live
    say("requests", f"{traffic.answered} answered, {len(traffic.failures)} failed")
    result(
        bench="healthy",
        minutes=given.minutes,
        snapshots=watch.lines,
        not_live=unseen,
        alerts=sorted({a["id"] for a in watch.alerts.values()}),
        failed_requests=len(traffic.failures),
    )
    # It attaches in the first seconds; after that it must see the server all the time.
    seen = watch.live > 0.8 * given.minutes * 60 and unseen < 80
    sys.exit(bool(watch.alerts or traffic.failures or not seen))


if __name__ == "__main__":
    main()
