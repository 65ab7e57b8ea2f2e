"""``sgtop replay``: a recording on the screen, as it was; without a terminal, as text or JSON."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from . import exit_codes, options

if TYPE_CHECKING:
    from sgtop_core.recording.reader import Recording


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``replay``."""
    p = subparsers.add_parser(
        "replay",
        help="show a recording on the screen",
        description="Show a recording on the screen, as it was. p pauses, left and right seek, < and > change the "
        "speed, n goes to the next finding, N to the next long gap.",
    )
    p.add_argument("file", metavar="FILE")
    add_player(p)
    p.add_argument("--once", action="store_true", help="print the figures at --at (default: the end) as text, and end")
    options.add_json(p, "with --once one JSON object; alone a JSON line for every snapshot, as fast as they are made")


def add_player(p: argparse.ArgumentParser) -> None:
    """Options of everything that plays."""
    p.add_argument("--speed", type=_speed, default=1.0, metavar="N", help="times as fast (default 1)")
    p.add_argument("--at", type=options.duration, default=None, metavar="TIME", help="begin there")
    p.add_argument("--window", type=options.window, default=5.0, metavar="TIME", help="5s, 60s or 10m (default 5s)")
    # The top parser gives the default, which SGTOP_THEME sets: `sgtop --theme light demo` is the same.
    p.add_argument(
        "--theme",
        choices=options.THEMES,
        default=argparse.SUPPRESS,
        help="colours; blue-orange suits most kinds of colour blindness; NO_COLOR=1 draws without",
    )
    options.add_ascii(p)


def _speed(text: str) -> float:
    try:
        speed = float(text.rstrip("x×"))
    except ValueError:
        speed = 0.0
    if not 0.25 <= speed <= 16:
        raise argparse.ArgumentTypeError(f"{text!r}: a speed is between 0.25 and 16")
    return speed


def run(args: argparse.Namespace) -> int:
    """Play."""
    from sgtop_core.recording.reader import Recording

    with Recording(args.file) as recording:
        warn(recording.complete, told := recording.damage)
        try:
            return play(recording, args)
        finally:
            if recording.damage > told:
                warn(True, recording.damage)


def play(recording: Recording, args: argparse.Namespace, *, loop: bool = False) -> int:
    """Show ``recording`` in the form that was asked for."""
    import json

    from sgtop_core.recording.replay import ReplaySession, ticks

    if args.json and not args.once:
        from sgtop_core.jsonout import line

        for shot in ticks(recording, args.window):
            sys.stdout.write(line(shot) + "\n")
        return exit_codes.OK
    player = ReplaySession(recording, speed=args.speed, window_s=args.window, loop=loop)
    try:
        if args.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            from sgtop_core.jsonout import as_json
            from sgtop_core.textout import text

            player.seek(recording.seconds if args.at is None else args.at)
            shot = player.snapshot()
            print(json.dumps(as_json(shot), ensure_ascii=False, indent=2) if args.json else text(shot).rstrip("\n"))
            return exit_codes.OK
        from ..replay_app import ReplayApp

        if args.at is not None:
            player.seek(args.at)
        player.start()
        app = ReplayApp(player, ascii_only=args.ascii, palette=args.theme, window_s=args.window)
        app.run(mouse=False)
        if app.failure is not None:
            raise app.failure
        return exit_codes.OK
    finally:
        player.stop()


def warn(complete: bool, damage: int) -> None:
    """Say what is missing from a recording."""
    from sgtop_core.recording.reader import damaged

    if not complete:
        print("sgtop: this recording was broken off; it is shown as far as it goes", file=sys.stderr)
    if damage:
        print(f"sgtop: {damaged(damage)} {'is' if damage == 1 else 'are'} skipped", file=sys.stderr)
