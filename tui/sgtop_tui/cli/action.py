"""``sgtop action``: flush the cache, freeze the heap, pin the scheduler, set its priority."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from . import exit_codes, options
from .toggle import ask, open_session

if TYPE_CHECKING:
    from sgtop_core.session import Session

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
        try:
            given["cpus"] = cpus(args.value or "")
        except ValueError:
            raise UserError(
                f"{args.value!r} is no list of CPUs", "", "sgtop action pin 0-3,8", exit_codes.USAGE
            ) from None
    elif args.action == "priority":
        if not re.fullmatch(r"-?\d+", args.value or "") or not -20 <= int(args.value) <= 19:
            why = "a nice value is a number from -20 (first) to 19 (last)"
            raise UserError(f"{args.value!r} is no nice value", why, "sgtop action priority 5", exit_codes.USAGE)
        given["nice"] = int(args.value)
    elif args.value is not None:
        raise UserError(f"{args.action} takes no value", "", f"sgtop action {args.action}", exit_codes.USAGE)
    if args.readonly:
        raise UserError("refused: --readonly", f"{args.action} changes the server", "", exit_codes.REFUSED)
    session = open_session(args, agent=args.action in ("pin", "priority"))
    try:
        result = ask(session, "action", given)
        text = _words(args.action, result)
        print(json.dumps({"action": args.action, "result": result}) if args.json else text, flush=True)
        if args.action in ("pin", "priority"):
            _hold(session, args.for_s)
    finally:
        session.stop()
    return exit_codes.OK


def _words(action: str, result: dict[str, Any]) -> str:
    if action == "pin":
        return "; ".join(
            f"{rank}: on CPUs {_list(r['cpus'])} (before: {_list(r['before'])})" for rank, r in result.items()
        )
    if action == "priority":
        return "; ".join(f"{rank}: nice {r['nice']} (before: {r['before']})" for rank, r in result.items())
    return f"{action}: {' '.join(str(result[action]).split())}"


def _list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _hold(session: Session, for_s: float | None) -> None:
    """Until the time is over, Ctrl-C, or the server has gone."""
    from . import UserError

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    old = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if sys.stderr.isatty():
        print("sgtop: Ctrl-C undoes it", file=sys.stderr)
    end = None if for_s is None else time.monotonic() + for_s
    try:
        while end is None or time.monotonic() < end:
            if session.snapshot().attach.state == "waiting":
                raise UserError("the server has gone", "", "", exit_codes.SERVER_GONE)
            time.sleep(0.1)
    except KeyboardInterrupt:
        pass  # the usual way to end it
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
