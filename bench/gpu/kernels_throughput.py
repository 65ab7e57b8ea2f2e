"""Decode throughput with kernel tracing ÷ attached without it, in interleaved pairs on one endless decode.

    python bench/gpu/kernels_throughput.py --mode windows|on|off|profile [--bs 1] [--pairs 20] [--real --seconds 10]

``windows`` runs 0.1 s in 1 s instead of 1 s in 10 s: the same share of time traced, ten times the switches, so that a
pair takes seconds; with ``--real`` the default windows, of which 10 s hold one. ``off`` compares attached without
tracing to itself: the noise. ``profile`` is SGLang's own ``/start_profile`` for comparison: rate while it profiles ÷
without, and the seconds that ``/stop_profile`` takes, at last after 3 s of profiling.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import alternate, header
from host import PORT, Rates, decoding, witness
from kernels_server import Talk, live, switch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("windows", "on", "off", "profile"), required=True)
    parser.add_argument("--bs", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--real", action="store_true", help="the default windows; with --seconds 10")
    parser.add_argument("--budget", type=float, default=200.0, help="seconds after which profile begins no more pairs")
    given = parser.parse_args()
    header()
    rates = Rates(witness(), given.bs)
    if given.mode == "profile":
        profile(rates, given)
        return
    session = live(PORT)
    stops = []

    def off() -> float:
        return rates.take(False, given.seconds)

    def on() -> float:
        if given.mode == "off":
            return rates.take(True, given.seconds)
        if given.mode == "windows":
            short = {} if given.real else {"window_s": 0.1, "period_s": 1.0}
            reply = session.command(None, "kernels", {"mode": "windows", **short})
            if not reply["ok"]:
                raise SystemExit(reply["error"])
            time.sleep(0.3)
        else:
            switch(session, "on", "tracing")
            time.sleep(0.2)
        got = rates.take(True, given.seconds)
        t = time.monotonic()
        switch(session, "off", "off")
        stops.append(time.monotonic() - t)
        time.sleep(0.2)
        return got

    try:
        with decoding(given.bs, again=True, prompt=2000):
            alternate(given.pairs, off, on)
    finally:
        session.stop()
    rates.report(bench="kernels_throughput", mode=given.mode, stop_s_max=round(max(stops), 3) if stops else None)


def profile(rates: Rates, given: argparse.Namespace) -> None:
    """SGLang's own profiler, for comparison."""
    talk = Talk(PORT)
    stops: list[float] = []

    def off() -> float:
        return rates.take(False, given.seconds)

    def on() -> float:
        got: float = profiled(lambda: rates.take(True, given.seconds))
        time.sleep(0.5)
        return got

    def profiled(work: Callable[[], Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            talk.post("/start_profile", {"activities": ["CPU", "GPU"], "with_stack": False, "output_dir": folder})
            got = work()
            t = time.monotonic()
            talk.post("/stop_profile", {})
            stops.append(round(time.monotonic() - t, 2))
        return got

    end = time.monotonic() + given.budget
    with decoding(given.bs, again=True, prompt=2000):
        while len(stops) < given.pairs and time.monotonic() < end:
            alternate(2, off, on)
        short = list(stops)
        profiled(lambda: time.sleep(3))
    rates.report(bench="kernels_throughput", mode="profile", stop_s_p50=statistics.median(short),
                 stop_s_max=max(short), stop_s_after_3_s=stops[-1])  # fmt: skip


if __name__ == "__main__":
    main()
