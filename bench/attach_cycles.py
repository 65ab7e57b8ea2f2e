"""Attach and detach thousands of times during traffic: no request may fail, no answer change, nothing be left behind.

The same as the test in tests/server, with 2,000 cycles; prints what the scheduler holds every hundred.

    flock /tmp/sgtop-bench.lock python bench/attach_cycles.py --cycles 2000
"""

from __future__ import annotations

import argparse
import sys
import time

from common import cpu_server, header, result, say
from sgtop_probes.resolve import resolve

from tests.server.cycles import cycle
from tests.server.traces import from_inside
from tests.server.traffic import Background, ids, serial


def main() -> None:
    """Run and print; exit status 1 when something was left or went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--version", default="0.5.20")
    given = parser.parse_args()
    header()
    with cpu_server(given.version) as bench:
        prompts = [ids(30, 9000 + i) for i in range(5)]
        control = serial(bench.client, prompts)
        ranks = resolve(f":{bench.server.port}").ranks
        marks = []
        start = time.monotonic()
        with Background(bench.client, workers=2) as traffic:
            for n in range(1, given.cycles + 1):
                cycle(ranks)
                if n == 20 or n % 100 == 0:
                    marks.append(from_inside(bench.schedulers[0], bench.folder))
                    now = marks[-1]
                    say(
                        f"cycle {n}",
                        f"{len(now.threads)} threads, {len(now.fds)} fds, {now.anonymous_kb} KB, "
                        f"{now.objects.total()} objects, {len(now.modules)} modules",
                    )
        seconds = time.monotonic() - start
        same = serial(bench.client, prompts) == control
    # Thousands of cycles that each left a 64 KB page would be over a hundred MB; torch's own wandering is a few.
    grown = marks[-1].grown_since(marks[0], anonymous_slack_kb=16 * 1024)
    say("requests", f"{traffic.answered} answered, {len(traffic.failures)} failed")
    say("serial answers", "identical to the control" if same else "DIFFER from the control")
    say("after cycle 20", "flat" if not grown else f"GREW: {'; '.join(grown)}")
    result(
        bench="attach_cycles",
        cycles=given.cycles,
        seconds=round(seconds, 1),
        failed_requests=len(traffic.failures),
        same_answers=same,
        grew=grown,
    )
    sys.exit(bool(traffic.failures) or not same or bool(grown))


if __name__ == "__main__":
    main()
