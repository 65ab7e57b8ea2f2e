"""``sgtop`` without a command: the screen; with ``--once`` or ``--json``, or without a terminal, text for pipes."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from . import exit_codes, options

WINDOWS_S = (5.0, 60.0, 600.0)
"""Windows that ``[`` and ``]`` walk through, seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the bare command."""
    options.add_attach(parser)
    options.add_readonly(parser)
    parser.add_argument("--once", action="store_true", help="look for a while (--for), print it as text, and end")
    parser.add_argument(
        "--for",
        dest="for_s",
        type=options.duration,
        default=None,
        metavar="TIME",
        help="how long --once looks (default 2s), or after how long --json ends (default: never)",
    )
    options.add_json(parser, "with --once one JSON object; alone a JSON line a snapshot, 4 a second")
    options.add_ascii(parser)
    parser.add_argument("--record", metavar="FILE", help="record what is seen to FILE, from the start (screen only)")
    parser.add_argument(
        "--ring",
        type=options.duration,
        default=300.0,
        metavar="TIME",
        help="how much of the past S saves on the screen (default 5m)",
    )
    parser.add_argument("--nvtx", action="store_true", help="also emit NVTX ranges, for an nsys that you have started")
    parser.add_argument(
        "--kernels",
        choices=("windows", "on", "off"),
        default=None,
        help="trace GPU kernels: 1 s in 10 s, all the time, or not (default: windows on the screen, else off)",
    )
    parser.add_argument(
        "--theme",
        choices=options.THEMES,
        default=os.environ.get("SGTOP_THEME", "default"),
        help="colours; blue-orange suits most kinds of colour blindness; NO_COLOR=1 draws without",
    )
    parser.add_argument(
        "--window",
        type=options.window,
        default=WINDOWS_S[0],
        metavar="TIME",
        help="window of all figures: 5s, 60s or 10m (default 5s)",
    )


def run(args: argparse.Namespace) -> int:
    """Show the screen, or hand over to the headless form that was asked for."""
    from . import UserError, load

    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if args.record and (args.json or args.once or not terminal):
        why = "" if args.json or args.once else "there is no terminal to draw on"
        raise UserError("--record goes with the screen only", why, _record(args), exit_codes.USAGE)
    if args.json and not args.once:
        return load("json_lines").run(args)
    if args.once or not terminal:
        return load("once").run(args)
    return load("screen").run(args)


def _record(args: argparse.Namespace) -> str:
    """The command that records what was asked for, without a screen."""
    words = ["sgtop", "record", *(["--attach", args.attach] if args.attach else []), "-o", args.record]
    return f"{shlex.join(words)} --for {f'{args.for_s:g}s' if args.for_s else 'TIME'}"
