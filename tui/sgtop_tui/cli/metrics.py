"""``sgtop metrics``: OpenMetrics for Prometheus."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time

from . import exit_codes, options
from .standing import Standing


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``metrics``."""
    p = subparsers.add_parser(
        "metrics",
        help="serve OpenMetrics for Prometheus",
        description="Attach and serve /metrics for Prometheus, until it is broken off. A Grafana dashboard and a "
        "scrape example are in sgtop's examples.",
    )
    options.add_attach(p)
    options.add_readonly(p)
    p.add_argument("--listen", default="127.0.0.1:9400", metavar="ADDR", help="HOST:PORT (default 127.0.0.1:9400)")
    p.add_argument("--for", dest="for_s", type=options.duration, metavar="TIME", help="end after this long")


def run(args: argparse.Namespace) -> int:
    """Serve."""
    from sgtop_core.exporter.serve import Exporter
    from sgtop_core.exporter.totals import Totals
    from sgtop_core.session import Session, SessionOptions

    session = Session(args.attach, SessionOptions(readonly=args.readonly))
    totals = Totals()
    session.taps.append(totals.tap)
    over = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: over.set())
    session.start()
    try:
        exporter = Exporter(args.listen, session.snapshot, totals)
        try:
            print(exporter.url, flush=True)
            print("sgtop: serving until Ctrl-C", file=sys.stderr)
            standing = Standing()
            end = None if args.for_s is None else time.monotonic() + args.for_s
            while not over.wait(0.25) and (end is None or time.monotonic() < end):
                standing(session.snapshot())
        finally:
            exporter.close()
    except KeyboardInterrupt:
        pass  # the usual way to end it
    finally:
        session.stop()
        signal.signal(signal.SIGTERM, before)
    return exit_codes.OK
