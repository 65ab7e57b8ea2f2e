"""``sgtop record``: what sgtop sees, into a file; or a ring in memory that is saved when a finding begins."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from . import exit_codes, options, streams
from .signals import Signals
from .standing import Standing

if TYPE_CHECKING:
    from sgtop_core.model.snapshot import Snapshot
    from sgtop_core.recording.recorder import Recorder
    from sgtop_core.session import Session


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``record``."""
    p = subparsers.add_parser(
        "record",
        help="record what sgtop sees into a file",
        description="Record what sgtop sees into a file, for `sgtop replay`, `report`, `diff` and `export`. "
        "Prints the file's path when it ends. About 0.1 to 5 MB a minute, by ranks and steps a second.",
    )
    options.add_attach(p)
    p.add_argument(
        "-o", "--output", metavar="FILE", help="default: sgtop-MODEL-TIME.sgtop here; with --on-alert a folder"
    )
    p.add_argument("--for", dest="for_s", type=options.duration, metavar="TIME", help="end after this long")
    p.add_argument("-f", "--force", action="store_true", help="write over an existing file")
    p.add_argument(
        "--on-alert",
        action="store_true",
        help="keep the last minutes in memory and write a file whenever a finding begins (warning or critical)",
    )
    p.add_argument("--ring", type=options.duration, default=300.0, metavar="TIME", help="minutes kept (default 5m)")


def run(args: argparse.Namespace) -> int:
    """Record until --for is over, Ctrl-C, SIGTERM or SIGHUP."""
    from sgtop_core.recording.keeper import attach, can_record_into, can_record_to
    from sgtop_core.session import Session, SessionOptions

    if args.output:
        can_record_into(args.output) if args.on_alert else can_record_to(args.output, overwrite=args.force)
    session = Session(args.attach, SessionOptions(readonly=args.readonly))
    problems: list[str] = []
    recorder = attach(session, ring_s=args.ring if args.on_alert else 0.0, on_line=problems.append)
    with Signals() as signals:  # until the file is closed: a second one must not break it
        try:
            session.start()
            if not args.on_alert and args.output:  # not before: without a server it would leave an empty file, or with
                recorder.start(args.output, overwrite=args.force)  # -f none of what was there
            if args.on_alert:
                return _on_alert(session, recorder, args, signals)
            return _file(session, recorder, args, signals, problems)
        finally:
            session.stop()
            recorder.close()


def _file(session: Session, recorder: Recorder, args: argparse.Namespace, signals: Signals, problems: list[str]) -> int:
    from sgtop_core.recording.keeper import file_name

    if recorder.state().path is None:
        recorder.start(file_name(session.snapshot(), time.time()), overwrite=args.force)
    path = recorder.state().path
    say = _Progress()
    standing = Standing(say.end)
    begin = time.monotonic()
    while not problems and not signals.came and (args.for_s is None or time.monotonic() - begin < args.for_s):
        signals.sleep(0.25)
        if signals.came:
            break
        standing(session.snapshot())
        say(session.snapshot(), recorder)
    session.stop()
    recorder.stop()
    say.end()
    state = recorder.state()
    if state.lost:
        print(f"sgtop: {state.lost} frames did not fit the recorder's queue and are missing", file=sys.stderr)
    if problems:
        print(f"sgtop: {problems[0]}", file=sys.stderr)
    print(path, flush=True)
    return exit_codes.FAILED if problems else standing.code


def _on_alert(session: Session, recorder: Recorder, args: argparse.Namespace, signals: Signals) -> int:
    from sgtop_core.recording.keeper import OnAlert

    on_alert = OnAlert(recorder, args.output or ".")
    say = _Progress()
    standing = Standing(say.end)
    begin = time.monotonic()
    last: Any = None
    while not signals.came and (args.for_s is None or time.monotonic() - begin < args.for_s):
        signals.sleep(0.1)
        s = session.snapshot()
        if s is last:
            continue
        last = s
        standing(s)
        written = on_alert.look(s)
        if written:
            say.end()
            print(written, flush=True)
        say(s, recorder)
    say.end()
    return standing.code


class _Progress:
    """One line on a terminal's stderr that is written over; nothing elsewhere."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._next = 0.0
        self._shown = False

    def __call__(self, s: Snapshot, recorder: Recorder) -> None:
        from ..recordings import file_size

        now = time.monotonic()
        if not self._on or now < self._next:
            return
        self._next = now + 1.0
        r = recorder.state()
        steps = sum(m.steps_per_s for rank in s.ranks for m in rank.modes.values())
        seconds, held = (r.seconds, r.bytes) if r.path else (r.ring_seconds, r.ring_bytes)
        what = "recording" if r.path else "in memory"
        line = f"{what} {seconds:.0f} s, {file_size(held)}, {steps:.0f} steps/s, {s.attach.state}; Ctrl-C ends it"
        self._shown = True
        self._write(line)

    def end(self) -> None:
        """Leave the line."""
        if self._shown:
            self._shown = False
            self._write("")

    def _write(self, line: str) -> None:
        try:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone, and SIGHUP is on its way
            streams.drop(sys.stderr)
