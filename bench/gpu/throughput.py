"""Decode throughput with sgtop attached ÷ without, with CUDA graphs, in interleaved pairs on one endless decode.

Its context grows all the time, so that rates are compared at equal lengths, by a fit (``common.effect``). The steps are
counted by the witness in the scheduler.
"""

from __future__ import annotations

import argparse
import time

from common import alternate, attached, header
from host import PORT, Rates, decoding, witness


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bs", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    header()
    rates = Rates(witness(), given.bs)

    def off() -> float:
        return rates.take(False, given.seconds)

    def on() -> float:
        with attached(PORT):
            time.sleep(0.3)
            got = rates.take(True, given.seconds)
        time.sleep(0.2)
        return got

    with decoding(given.bs, prompt=2000):
        alternate(given.pairs, off, on)
    rates.report(bench="gpu_throughput")


if __name__ == "__main__":
    main()
