"""``sgtop action``: flush the cache, freeze the heap, pin the scheduler, set its priority."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import exit_codes, options
from .signals import Signals
from .toggle import ask, confirm, must_be_askable, open_session, server_gone

if TYPE_CHECKING:
    from sgtop_core.session import Session

UNDONE = ("pin", "priority")
"""Undone in the end; what cannot be is asked for first."""
ACTIONS = {
    "flush-cache": "empty the radix cache of an idle server; what it held is gone",
    "freeze-gc": "put the Python heap of the server's processes out of the collector's sight; cannot be undone",
    "pin": "let the schedulers run on these CPUs only, until this command ends",
    "priority": "give the schedulers this nice value, until this command ends",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``action``."""
    p = subparsers.add_parser(
        "action",
        help="flush the cache, freeze the heap, pin the scheduler or set its priority",
        description="Act on a running server. What can be undone is undone when the command ends, however it ends.",
        epilog="actions:\n" + "\n".join(f"  {name:<12} {text}" for name, text in ACTIONS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("action", metavar="ACTION", help=", ".join(ACTIONS))
    p.add_argument("value", nargs="?", metavar="VALUE", help="pin: CPUs, as 0-3,8; priority: nice, -20 (first) to 19")
    options.add_attach(p)
    options.add_readonly(p)
    p.add_argument("--for", dest="for_s", type=options.duration, metavar="TIME", help="pin, priority: how long")
    p.add_argument("--rank", metavar="R", help="pin, priority: only this rank, such as TP0")
    p.add_argument("--yes", "-y", action="store_true", help="flush-cache, freeze-gc: do not ask before it is done")
    options.add_json(p, "one JSON object on stdout")


def cpus(text: str) -> list[int]:
    """CPU numbers of ``0-3,8``.

    Raises:
        ValueError: it is none.
    """
    out: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(text)
        out.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(out)


def run(args: argparse.Namespace) -> int:
    """Do it, and undo it in the end."""
    from . import UserError

    given: dict[str, Any] = {"action": args.action, "rank": args.rank}
    if args.action not in ACTIONS:
        raise UserError(f"there is no action {args.action!r}", f"there are {', '.join(ACTIONS)}", "", exit_codes.USAGE)
    if args.action == "pin":
        given["cpus"] = _cpus_asked(args.value)
    elif args.action == "priority":
        given["nice"] = _nice_asked(args.value)
    else:
        for what, value in (("value", args.value), ("--rank", args.rank), ("--for", args.for_s)):
            if value is not None:
                raise UserError(f"{args.action} takes no {what}", "", f"sgtop action {args.action}", exit_codes.USAGE)
    if args.readonly:
        raise UserError("refused: --readonly", f"{args.action} changes the server", "", exit_codes.REFUSED)
    lasting = args.action not in UNDONE
    if lasting:
        must_be_askable(args, f"sgtop action {args.action} --yes")
    signals = Signals()
    signals.hold()
    session = open_session(args, signals, agent=not lasting)
    try:
        ranks = list(session.hellos())
        if args.rank is not None and args.rank not in ranks:
            why = f"there {'is' if len(ranks) == 1 else 'are'} {', '.join(ranks)}"
            mend = f"sgtop action {args.action} {args.value} --rank '{ranks[0]}'" if ranks else ""
            raise UserError(f"there is no rank {args.rank!r}", why, mend, exit_codes.USAGE)
        if lasting:
            if not args.yes:
                print(f"{args.action}: {ACTIONS[args.action]}.", file=sys.stderr)
            confirm(args, signals)
            signals.release()  # there is nothing to take back, and HTTP may wait for long
        result = ask(session, "action", given)
        text = _words(args.action, result, given)
        print(json.dumps({"action": args.action, "result": result}) if args.json else text, flush=True)
        if not lasting:
            _hold(session, args.for_s, signals)
    finally:
        session.stop()
        signals.ignore()
    return exit_codes.OK


def _cpus_asked(text: str | None) -> list[int]:
    from . import UserError

    what = "pin: to which CPUs?" if text is None else f"{text!r} is no list of CPUs"
    try:
        return cpus(text or "")
    except ValueError:
        raise UserError(what, "", "sgtop action pin 0-3,8", exit_codes.USAGE) from None


def _nice_asked(text: str | None) -> int:
    from . import UserError

    if text is not None and re.fullmatch(r"-?\d+", text) and -20 <= int(text) <= 19:
        return int(text)
    what = "priority: which nice value?" if text is None else f"{text!r} is no nice value"
    why = "a nice value is a number from -20 (first) to 19 (last)"
    raise UserError(what, why, "sgtop action priority 5", exit_codes.USAGE)


def _words(action: str, result: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    if action == "pin":
        return "; ".join(pinned(rank, r, given["cpus"]) for rank, r in result.items())
    if action == "priority":
        return "; ".join(f"{rank}: nice {r['nice']} (before: {r['before']})" for rank, r in result.items())
    return f"{action}: {' '.join(str(result[action]).split())}"


def pinned(rank: str, result: Mapping[str, Any], asked: Sequence[int]) -> str:
    """What a pin became: the kernel leaves out, without a word, what the process may not use."""
    out = sorted(set(asked) - set(result["cpus"]))
    less = f", not {_list(out)}: the server's process may not use {'it' if len(out) == 1 else 'them'}" if out else ""
    return f"{rank}: on CPUs {_list(result['cpus'])}{less} (before: {_list(result['before'])})"


def _list(numbers: Sequence[int]) -> str:
    """``0-3,8``."""
    out: list[str] = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        each = [n for _, n in run]
        out.append(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}")
    return ",".join(out)


def _hold(session: Session, for_s: float | None, signals: Signals) -> None:
    """Until the time is over, Ctrl-C, or the server has gone."""
    if sys.stderr.isatty():
        print("sgtop: Ctrl-C undoes it", file=sys.stderr)
    end = None if for_s is None else time.monotonic() + for_s
    while not signals.came and (end is None or time.monotonic() < end):
        if session.snapshot().attach.state == "waiting":
            raise server_gone()
        signals.sleep(0.1)
