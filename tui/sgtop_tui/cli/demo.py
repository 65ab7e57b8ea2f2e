"""``sgtop demo``: a recording of a real server that comes with sgtop, on the screen. Needs no server."""

from __future__ import annotations

import argparse

from . import exit_codes, options, replay


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo``."""
    p = subparsers.add_parser(
        "demo",
        help="play a recording of a real server; needs none",
        description="Play a recording of a real server that comes with sgtop, over and over. No server is needed.",
    )
    p.add_argument("name", nargs="?", metavar="NAME", help="which (default: the first of --list)")
    p.add_argument("--list", action="store_true", help="print the names and what they show")
    replay.add_player(p)
    p.add_argument("--once", action="store_true", help="print the figures at --at (default: the end) as text, and end")
    options.add_json(p, "with --once one JSON object; alone a JSON line for every snapshot")


def run(args: argparse.Namespace) -> int:
    """List or play."""
    from sgtop_core.recording import embedded

    if args.list:
        for d in embedded.all_demos():
            print(f"{d.name:<16} {d.seconds:4.0f} s  {d.says}")
        return exit_codes.OK
    with embedded.open_demo(args.name) as recording:
        return replay.play(recording, args, loop=True)
