"""``sgtop toggle``: flip a switch of a running server, in the foreground until it is back."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import exit_codes, options

if TYPE_CHECKING:
    from sgtop_core.session import Session

ATTACH_S = 20.0
APPLY_S = 30.0
"""How long a flip may be pending: an idle server makes no steps, so none takes effect."""
BACK_S = 5.0
SWITCHES = ("cuda-graph-decode", "cuda-graph-prefill", "radix-cache")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``toggle``."""
    p = subparsers.add_parser(
        "toggle",
        help="turn CUDA graphs or the radix cache off on a running server, and back on",
        description="Turn a switch of a running server off for a while. All ranks of a group change at the same step. "
        "The command stays in the foreground; when it ends, however it ends, everything is back as it was.",
        epilog="switches: " + ", ".join(SWITCHES),
    )
    p.add_argument("switch", nargs="?", metavar="SWITCH", help="which; --list says what this server has")
    p.add_argument("value", nargs="?", metavar="on|off", help="off, or on: back at once, whoever turned it off")
    options.add_attach(p)
    options.add_readonly(p)
    p.add_argument(
        "--for", dest="for_s", type=options.duration, default=60.0, metavar="TIME", help="how long (default 60s)"
    )
    p.add_argument("--keep", action="store_true", help="until Ctrl-C instead of a time")
    p.add_argument("--yes", "-y", action="store_true", help="do not ask before it is done")
    p.add_argument("--list", action="store_true", help="what can be switched, what cannot, and why; changes nothing")
    options.add_json(p, "one JSON object a line: the list, or every change")


def run(args: argparse.Namespace) -> int:
    """Flip, wait, and see it back."""
    from . import UserError

    if not args.list:
        if args.switch not in SWITCHES:
            what = f"there is no switch {args.switch!r}" if args.switch else "which switch?"
            raise UserError(what, f"there are {', '.join(SWITCHES)}", "sgtop toggle --list", exit_codes.USAGE)
        if args.value not in ("on", "off"):
            what = f"{args.value!r} is not on or off" if args.value else f"{args.switch}: on or off?"
            raise UserError(what, "", f"sgtop toggle {args.switch} off --for 30s", exit_codes.USAGE)
        if args.readonly:
            raise UserError("refused: --readonly", "toggle changes the server", "", exit_codes.REFUSED)
    session = open_session(args)
    try:
        if args.list:
            return _list(session, args.json)
        if args.value == "on":
            return _on(session, args)
        return _off(session, args)
    finally:
        session.stop()


def open_session(args: argparse.Namespace, agent: bool = True) -> Session:
    """A session with an agent in every rank; with ``agent`` false HTTP is enough.

    Raises:
        UserError: not within ``ATTACH_S``; the session is stopped then.
    """
    from sgtop_core.session import Session, SessionOptions

    from . import UserError

    session = Session(args.attach, SessionOptions(readonly=args.readonly))
    session.start()
    end = time.monotonic() + ATTACH_S
    try:
        while True:
            s = session.snapshot()
            states = [r.state for r in s.ranks]
            if states and all(state == "live" for state in states):
                return session
            if not agent and s.attach.state in ("live", "agentless", "hung"):
                return session
            late = time.monotonic() > end
            if s.attach.state in ("agentless", "waiting", "starting", "hung") or late:
                codes = {"waiting": exit_codes.SERVER_GONE, "agentless": exit_codes.REFUSED}
                code = codes.get(s.attach.state, exit_codes.NOT_READY)
                if session.lacks_permission:
                    code = exit_codes.NO_PERMISSION
                raise UserError("no agent in every rank, so nothing is switched", s.attach.message, "", code)
            time.sleep(0.05)
    except BaseException:
        session.stop()
        raise


def ask(session: Session, op: str, args: Mapping[str, Any]) -> Any:
    """A command's result.

    Raises:
        UserError: refused, or the server has gone.
    """
    from . import UserError

    reply = session.command(None, op, args)
    if reply.get("ok"):
        return reply.get("result")
    if gone(session):
        raise UserError("the server has gone", str(reply.get("error")), "", exit_codes.SERVER_GONE)
    raise UserError(str(reply.get("error")), "nothing was changed", "", exit_codes.REFUSED)


def gone(session: Session) -> bool:
    """Whether a process of the server has ended; the kernel knows sooner than the session's looks."""
    from sgtop_probes import procfs

    s = session.snapshot()
    pids = [s.server.pid, *(r.pid for r in s.ranks)]
    return s.attach.state == "waiting" or any(not procfs.alive(p) for p in pids if p is not None)


def _list(session: Session, as_json: bool) -> int:
    groups = ask(session, "toggle.list", {})
    if as_json:
        print(json.dumps({"groups": groups}, ensure_ascii=False))
        return exit_codes.OK
    for name, group in groups.items():
        if len(groups) > 1:
            print(f"{name} ({group['size']} ranks)")
        for s in group["switches"]:
            if s["available"]:
                left = f", back in {s['left_s']:.0f} s" if s["left_s"] is not None else ""
                by = f" by {s['owner']}" if s["owner"] else ""
                print(f"{s['name']:<20} {s['state']}{by}{left}")
            else:
                print(f"{s['name']:<20} not available: {s['reason']}")
    return exit_codes.OK


def _say(args: argparse.Namespace, event: str, text: str, **more: Any) -> None:
    """One change: a line for people, or a JSON line."""
    if args.json:
        line = {"time": round(time.time(), 3), "switch": args.switch, "event": event, "text": text, **more}
        print(json.dumps(line, ensure_ascii=False), flush=True)
    else:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _on(session: Session, args: argparse.Namespace) -> int:
    from . import UserError

    result = ask(session, "toggle", {"switch": args.switch, "on": True})
    if not any(r.get("back") for r in result.values()):
        _say(args, "nothing", f"{args.switch} is on already")
        return exit_codes.OK
    if not session.switches.wait(args.switch, True, BACK_S):
        raise UserError(f"{args.switch} is not back within {BACK_S:.0f} s", "", "", exit_codes.FAILED)
    _say(args, "on", f"{args.switch} is on")
    return exit_codes.OK


def _off(session: Session, args: argparse.Namespace) -> int:
    from . import UserError

    plan = ask(session, "toggle.plan", {"switch": args.switch, "on": False})
    refuse = next((p["refuse"] for p in plan.values() if p["refuse"]), "")
    if refuse:
        raise UserError(
            f"{args.switch} cannot be switched off: {refuse}", "nothing was changed", "", exit_codes.REFUSED
        )
    cost = "; ".join(dict.fromkeys(p["text"] for p in plan.values()))
    time_said = "as long as this runs" if args.keep else f"{args.for_s:g} s"
    _say(args, "plan", f"{args.switch} off for {time_said}: {cost}")
    if not args.yes and sys.stdin.isatty() and sys.stderr.isatty() and not _confirmed():
        raise UserError("not confirmed", "nothing was changed", "", exit_codes.REFUSED)
    old = {n: signal.signal(n, _interrupt) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        ask(session, "toggle", {"switch": args.switch, "on": False, "for_s": args.for_s})
        if args.keep:
            ask(session, "toggle.keep", {"switch": args.switch})
        code = _watch(session, args)
    except KeyboardInterrupt:
        code = exit_codes.OK
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    return _see_back(session, args, code)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _confirmed() -> bool:
    print("Do it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _states(session: Session, switch: str) -> list[Mapping[str, Any]]:
    return [next(s for s in g["switches"] if s["name"] == switch) for g in ask(session, "toggle.list", {}).values()]


def _watch(session: Session, args: argparse.Namespace) -> int:
    """Until it is back by itself."""
    from . import UserError

    off = False
    asked = time.monotonic()
    shown = -1
    while True:
        states = _states(session, args.switch)
        if not off and all(s["state"] == "off" for s in states):
            off = True
            steps = [s["step"] for s in states]
            _say(args, "off", f"{args.switch} is off since step {steps[0]}", steps=steps)
        if all(s["wanted"] == "on" for s in states):
            if off:
                return exit_codes.OK
            what = f"{args.switch} was not switched off"
            lines = [text for text in session.snapshot().log if args.switch in text and "asked by" not in text]
            if lines:
                raise UserError(what, lines[-1].split(": ", 1)[-1], "", exit_codes.REFUSED)
            why = "the server made no steps in that time, and a flip takes effect at a step"
            again = f"sgtop toggle {args.switch} off --for 60s, while requests run"
            raise UserError(what, why, again, exit_codes.NOT_READY)
        if not off and time.monotonic() - asked > APPLY_S:
            waits = "the server makes no steps: a flip takes effect with the next requests"
            raise UserError(f"{args.switch} is still pending after {APPLY_S:.0f} s", waits, "", exit_codes.NOT_READY)
        left = states[0]["left_s"]
        if left is not None and int(left) != shown and sys.stderr.isatty() and not args.json:
            shown = int(left)
            print(f"\r\x1b[Kback in {shown} s; Ctrl-C: at once ", end="", file=sys.stderr, flush=True)
        time.sleep(0.25)


def _see_back(session: Session, args: argparse.Namespace, code: int) -> int:
    from . import UserError

    if sys.stderr.isatty() and not args.json:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    ask(session, "toggle.back", {"switch": args.switch})
    if not session.switches.wait(args.switch, True, BACK_S):
        raise UserError(
            f"{args.switch} is not back within {BACK_S:.0f} s", "it comes back at the next step", "", exit_codes.FAILED
        )
    _say(args, "on", f"{args.switch} is on again")
    return code
