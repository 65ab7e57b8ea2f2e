"""Thousands of injections into busy targets: every one has to run exactly once, and the target's own checks to hold.

python bench/attach_stress.py [--times 500] [--modes scheduler,objects] [--pythons 3.10,3.12] [--threads main,auto]
"""

from __future__ import annotations

import argparse
import random
import time

from common import header, result, say
from sgtop_probes.attach import tracer

from tests.attach import rig
from tests.attach.test_busy_targets import BLOB, COUNT, QUICK, SLOW


def hammer(mode: str, thread: str, python: list[str], times: int) -> dict[str, object]:
    """One target, ``times`` injections; what came of it."""
    errors: list[str] = []
    stops: list[float] = []
    with rig.target(mode, python=python, seconds=7200) as t:
        for _ in range(times):
            try:
                stops.append(tracer.run(t.pid, COUNT, BLOB, thread).stop_us)
            except tracer.TracerFailed as e:
                errors.append(str(e))
            time.sleep(random.uniform(0, 0.03))
        time.sleep(2 if mode in SLOW else 0.5)
        report = t.end()
    stops.sort()
    return {
        "ok": len(stops),
        "runs": report["runs"],
        "refused": errors,
        "errors": report["errors"],
        "stop_us_p50": round(stops[len(stops) // 2]) if stops else None,
        "stop_us_max": round(stops[-1]) if stops else None,
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--times", type=int, default=500, help="injections a target (a tenth for targets that mostly wait)"
    )
    parser.add_argument("--modes", default=",".join((*QUICK, *SLOW)))
    parser.add_argument("--pythons", default=",".join(rig.pythons()))
    parser.add_argument("--threads", default="main,auto")
    args = parser.parse_args()
    header()
    total = wrong = 0
    for version in args.pythons.split(","):
        for mode in args.modes.split(","):
            for thread in args.threads.split(","):
                times = max(args.times // 10, 5) if mode in SLOW else args.times
                got = hammer(mode, thread, rig.pythons()[version], times)
                good = got["runs"] == got["ok"] == times and got["errors"] == 0
                total += times
                wrong += not good
                say(f"{version} {mode} {thread}", f"{'ok' if good else 'WRONG'} {got}")
    result(bench="attach_stress", injections=total, targets_with_a_fault=wrong)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
