"""``sgtop metrics``: OpenMetrics for Prometheus."""

from __future__ import annotations

import argparse
import sys
import time

from . import exit_codes, options
from .signals import Signals
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
    from sgtop_core.exporter.serve import Exporter, ListenError, parse_address
    from sgtop_core.exporter.totals import Totals
    from sgtop_core.session import Session, SessionOptions

    from . import UserError

    try:
        parse_address(args.listen)
    except ListenError as e:
        raise UserError(e.what, e.why, e.mend, exit_codes.USAGE) from None
    session = Session(args.attach, SessionOptions(readonly=args.readonly))
    totals = Totals()
    session.taps.append(totals.tap)
    standing = Standing()
    with Signals() as signals:  # any of them is the usual way to end it
        session.start()
        try:
            exporter = Exporter(args.listen, session.snapshot, totals)
            try:
                print(exporter.url, flush=True)
                print("sgtop: serving until Ctrl-C", file=sys.stderr)
                end = None if args.for_s is None else time.monotonic() + args.for_s
                while not signals.came and (end is None or time.monotonic() < end):
                    signals.sleep(0.25)
                    standing(session.snapshot())
            finally:
                exporter.close()
        finally:
            session.stop()
    return standing.code
