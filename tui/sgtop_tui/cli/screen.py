"""The interactive screen: opens the session, shows it, and detaches however the screen is left."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..source import Source
from . import exit_codes

if TYPE_CHECKING:
    from sgtop_core.recording.recorder import Recorder


def run(args: argparse.Namespace) -> int:
    """Attach and show. Attach errors come before the screen opens, as lines on stderr."""
    from sgtop_core.recording.keeper import attach
    from sgtop_core.session import Session, SessionOptions

    options = SessionOptions(
        readonly=args.readonly, nvtx=args.nvtx, window_s=args.window, kernels=args.kernels or "windows"
    )
    source = Session(args.attach, options)
    said: list[Callable[[str], None]] = []
    # The recorder is there from the start, so that S can save what happened before anyone looked.
    recorder = attach(source, ring_s=args.ring, on_line=lambda text: said[-1](text) if said else None)
    try:
        if args.record:
            recorder.start(args.record)
        source.start()
        return show(source, args, recorder, said)
    finally:
        source.stop()
        recorder.close()


@contextlib.contextmanager
def _on_stdout() -> Iterator[None]:
    """Draw on stdout, which is a terminal here. Textual draws on stderr, which may be a file: ``sgtop 2> log``."""
    stderr = sys.__stderr__
    if stderr is not None and not stderr.isatty():
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stderr__ = stderr  # type: ignore[misc]


def show(
    source: Source,
    args: argparse.Namespace,
    recorder: Recorder | None = None,
    said: list[Callable[[str], None]] | None = None,
) -> int:
    """The screen over a started source; raises what ended it, if that was not the reader.

    ``said`` gets who wants to hear of the recorder's troubles.
    """
    from ..app import SgtopApp

    with _on_stdout():
        app = SgtopApp(source, ascii_only=args.ascii, palette=args.theme, window_s=args.window, recorder=recorder)
        if said is not None:
            said.append(app.recording_stopped)
        app.run(mouse=False)
    if app.failure is not None:
        raise app.failure
    return exit_codes.OK
