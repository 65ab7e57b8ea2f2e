"""The interactive screen: opens the session, shows it, and detaches however the screen is left."""

from __future__ import annotations

import argparse

from ..source import Source
from . import exit_codes


def run(args: argparse.Namespace) -> int:
    """Attach and show. Attach errors come before the screen opens, as lines on stderr."""
    from sgtop_core.session import Session, SessionOptions

    source = Session(args.attach, SessionOptions(readonly=args.readonly, nvtx=args.nvtx, window_s=args.window))
    try:
        source.start()
        return show(source, args)
    finally:
        source.stop()


def show(source: Source, args: argparse.Namespace) -> int:
    """The screen over a started source; raises what ended it, if that was not the reader."""
    from ..app import SgtopApp

    app = SgtopApp(source, ascii_only=args.ascii, palette=args.theme, window_s=args.window)
    app.run(mouse=False)
    if app.failure is not None:
        raise app.failure
    return exit_codes.OK
