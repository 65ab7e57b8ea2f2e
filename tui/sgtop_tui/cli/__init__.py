"""The ``sgtop`` command: finds the command's module, runs it, and turns what goes wrong into one clear line.

A command is a module in this package with

* ``add_parser(subparsers)``: adds its parser, with ``subparsers.add_parser(NAME, help=…)``;
* ``run(args) -> int``: does the work and returns one of :mod:`sgtop_tui.cli.exit_codes`.

It stands in ``COMMANDS``. At import a command takes in only the standard library and its neighbours here; the rest is
imported in ``run``, so that ``sgtop list`` does not pay for numpy and no headless command ever loads Textual.

What a command raises is shown as one line each of what is wrong, why, and what mends it: any exception with a ``what``
attribute (and ``why``, ``mend``, ``exit_code``) is an answer, not a crash. stdout is data, stderr is talk.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn, Protocol, cast

from . import exit_codes, options, streams

COMMANDS: dict[str, str] = {
    "list": "list_servers",
    "run": "run",
    "doctor": "doctor",
    "schema": "schema",
    "record": "record",
    "capture": "capture",
    "replay": "replay",
    "report": "report",
    "diff": "diff",
    "export": "export",
    "metrics": "metrics",
    "toggle": "toggle",
    "ab": "ab",
    "action": "action",
    "demo": "demo",
}
"""Command → its module in this package, in the order of ``--help``. Without a command: ``live``."""


ON_A_SERVER = frozenset({"record", "capture", "metrics", "toggle", "ab", "action"})
"""Commands of which advice must name the same server."""


class Command(Protocol):
    """What a command's module has."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the command's parser."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; an exit code."""


class UserError(Exception):
    """What a command cannot do, in words for the person who typed it."""

    def __init__(self, what: str, why: str = "", mend: str = "", exit_code: int = exit_codes.FAILED) -> None:
        super().__init__(what)
        self.what, self.why, self.mend, self.exit_code = what, why, mend, exit_code


def load(module: str) -> Command:
    """The module of a command."""
    return cast("Command", importlib.import_module(f"{__name__}.{module}"))


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``command_module`` in its result names the module to run."""
    from . import live

    parser = argparse.ArgumentParser(
        prog="sgtop",
        description="A live profiler for a running SGLang server: no restart, almost no cost.",
        epilog=exit_codes.epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    live.add_arguments(parser)
    parser.set_defaults(command=None, command_module="live", **options.DEFAULTS)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, module in COMMANDS.items():
        load(module).add_parser(subparsers)
        if name in subparsers.choices:
            subparsers.choices[name].set_defaults(command_module=module)
    return parser


def version() -> str:
    """The version of the installed distribution, else of the tree."""
    from importlib import metadata

    try:
        return metadata.version("sgtop-profiler")
    except metadata.PackageNotFoundError:
        return "0.1.0 (not installed)"


def _of_that_server(mend: str, attach: str | None) -> str:
    """Advice with the server that was given: typed without it, it would ask which, or go to another."""
    if not attach or not mend or "--attach" in mend:
        return mend
    command = rf"\bsgtop ({'|'.join(sorted(ON_A_SERVER))})\b"
    return re.sub(command, lambda found: f"{found[0]} --attach {shlex.quote(attach)}", mend)


def explain(error: BaseException, attach: str | None = None) -> int:
    """Say on stderr what went wrong; the exit code. ``attach``: the server that was given.

    An exception with ``what`` is an answer in words; anything else is a mistake of sgtop's own. (Not named after a
    command: importing the command's module would put the module in its place here.)
    """
    what = getattr(error, "what", None)
    if isinstance(what, str):
        streams.say(f"sgtop: {what}")
        mend = _of_that_server(getattr(error, "mend", ""), attach)
        for head, text in (("why", getattr(error, "why", "")), ("fix", mend)):
            if text:
                streams.say(f"  {head}: {text}")
        code = getattr(error, "exit_code", exit_codes.FAILED)
        return code if isinstance(code, int) else exit_codes.FAILED
    if isinstance(error, PermissionError):
        where = f" {error.filename}" if error.filename else ""
        streams.say(f"sgtop: no permission for{where}: {error.strerror}. `sgtop doctor` says what is missing")
        return exit_codes.NO_PERMISSION
    if streams.no_room(error):
        streams.say(f"sgtop: stdout cannot be written: {getattr(error, 'strerror', error)}")
        return exit_codes.FAILED
    words = " ".join(str(error).split()) or "no details"
    streams.say(f"sgtop: a mistake in sgtop itself: {type(error).__name__}: {words}")
    streams.say("  fix: SGTOP_DEBUG=1 shows the trace; please report it with that")
    return exit_codes.INTERNAL


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sgtop`` with ``argv`` (default: the process's own); the exit code. Never a traceback."""
    streams.prepare()
    args = argparse.Namespace(attach=None)
    try:
        parsed = _parse(argv)
        if isinstance(parsed, int):
            code = parsed
        else:
            args = parsed
            code = load(args.command_module).run(args)
        sys.stdout.flush()  # what a full disk does not take is said here, not by Python at its end
        return code
    except KeyboardInterrupt:
        streams.say("sgtop: broken off, detached")
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has gone (`sgtop --json | head`): the normal end of a pipe
        streams.drop(sys.stdout)
        return exit_codes.OK
    except Exception as error:
        if os.environ.get("SGTOP_DEBUG"):
            traceback.print_exc()
        if streams.no_room(error):
            streams.drop(sys.stdout)
        return explain(error, args.attach)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace | int:
    """What was asked for; an exit code where that is done already."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as end:  # argparse ends the process after --help and after a wrong command line
        return end.code if isinstance(end.code, int) else exit_codes.USAGE
    if args.version:
        print(f"sgtop {version()}")
        return exit_codes.OK
    return args


def script() -> NoReturn:
    """Entry point of ``python -m sgtop_tui``."""
    sys.exit(main())
