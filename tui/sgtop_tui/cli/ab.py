"""``sgtop ab``: does a switch matter on this server, under its load, now."""

from __future__ import annotations

import argparse
import json
import sys

from . import exit_codes, options
from .signals import Signals
from .toggle import SWITCHES, gone, open_session, server_gone

NULL = "null"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``ab``."""
    p = subparsers.add_parser(
        "ab",
        help="compare a server with a switch on and off, in turn, under its own load",
        description="Flip a switch A B A B … and print medians, ratio and a 95 % interval. It says so when there is no "
        "difference. Everything is back as it was when the command ends, however it ends.",
        epilog="switches: " + ", ".join((*SWITCHES, f"{NULL} (flips nothing: what the comparison itself finds)")),
    )
    options.add_attach(p)
    options.add_readonly(p)
    p.add_argument("--switch", required=True, metavar="SWITCH", help="which")
    p.add_argument("--rounds", type=int, default=5, metavar="N", help="how often off (default 5; 3 at least)")
    p.add_argument("--each", type=options.duration, default=3.0, metavar="TIME", help="length of a side (default 3s)")
    options.add_json(p, "one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    from sgtop_core.switches import ab, ab_run

    from . import UserError

    if args.switch not in (*SWITCHES, NULL):
        names = ", ".join((*SWITCHES, NULL))
        raise UserError(f"there is no switch {args.switch!r}", f"there are {names}", "", exit_codes.USAGE)
    if not 3 <= args.rounds <= 1000:
        raise UserError(f"{args.rounds} rounds", "fewer than 3 say nothing", "--rounds 5", exit_codes.USAGE)
    if args.readonly and args.switch != NULL:
        raise UserError("refused: --readonly", "ab changes the server", "", exit_codes.REFUSED)
    signals = Signals()
    signals.hold()
    session = open_session(args, signals)
    try:
        result = ab_run.run(session, args.switch, args.rounds, args.each, _say, signals.sleep, lambda: signals.came)
    except ab_run.AbError as e:
        if gone(session):
            raise server_gone() from None
        code = exit_codes.NOT_READY if e.busy else exit_codes.REFUSED
        raise UserError(str(e), e.left, e.mend, code) from None
    except ab_run.StoppedError:
        raise KeyboardInterrupt from None
    finally:
        _say("")
        session.stop()
        signals.ignore()
    print(json.dumps(ab.as_json(result)) if args.json else ab.table(result))
    return exit_codes.OK


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
