"""``sgtop --json``: one JSON object a line, four times a second, until it is broken off, ``--for`` is over or the
reader goes. ``sgtop schema`` describes a line. No Textual.
"""

from __future__ import annotations

import argparse
import sys
import time

from .signals import Signals
from .standing import Standing


def run(args: argparse.Namespace) -> int:
    """Print lines."""
    from sgtop_core.jsonout import line
    from sgtop_core.session import Session, SessionOptions

    options = SessionOptions(
        readonly=args.readonly,
        nvtx=args.nvtx,
        window_s=getattr(args, "window", 5.0),
        kernels=getattr(args, "kernels", None) or "off",
    )
    session = Session(args.attach, options)
    standing = Standing()
    with Signals() as signals:  # any of them is the usual way to end it
        session.start()
        try:
            end = None if args.for_s is None else time.monotonic() + args.for_s
            last = None
            while not signals.came and (end is None or time.monotonic() < end):
                shot = session.snapshot()
                if shot is not last:
                    last = shot
                    standing(shot)
                    sys.stdout.write(line(shot) + "\n")
                    sys.stdout.flush()
                signals.sleep(0.05)
        finally:
            session.stop()
    return standing.code
