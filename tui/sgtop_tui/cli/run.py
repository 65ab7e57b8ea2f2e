"""``sgtop run -- CMD``: start a server that sgtop can attach to later without any ptrace permission."""

from __future__ import annotations

import argparse
import os
import sys

from . import exit_codes


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``sgtop run``."""
    parser = subparsers.add_parser(
        "run",
        help="start a server with the agent dormant in its schedulers",
        usage="sgtop run -- python -m sglang.launch_server …",
        description="Starts CMD with the agent asleep in each scheduler: sgtop can attach later without ptrace. "
        "The command replaces sgtop: same pid, same signals, same exit code (126 and 127 as in a shell).",
    )
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="-- CMD", help="the server's command line")


def run(args: argparse.Namespace) -> int:
    """Become the command; returns only when there is none."""
    from sgtop_probes import run as start

    command = args.cmd[1:] if args.cmd[:1] == ["--"] else args.cmd
    if not command:
        print("sgtop run: no command: sgtop run -- python -m sglang.launch_server …", file=sys.stderr)
        return exit_codes.USAGE
    warning = start.warning(command)
    if warning:
        print(f"sgtop run: {warning}", file=sys.stderr)
    sys.stdout.flush()
    start.execute(command, os.environ)
    return exit_codes.FAILED
