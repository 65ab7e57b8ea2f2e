"""``sgtop toggle``: flip a switch of a running server, in the foreground until it is back."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import exit_codes, options
from .signals import Signals

if TYPE_CHECKING:
    from sgtop_core.session import Session
    from sgtop_core.switches.own import OwnFlip, Seen

ATTACH_S = 20.0
APPLY_S = 30.0
"""How long a flip may be pending: an idle server makes no steps, so none takes effect."""
BACK_S = 5.0
AGAIN_S = 5.0
"""How long what can be asked again is asked again."""
TIME_OVER = "its time is over"
"""The agent's words for the usual end."""
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
    p.add_argument("--yes", "-y", action="store_true", help="do not ask before it is done; without a terminal: needed")
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
        if args.value == "off":
            must_be_askable(args, f"sgtop toggle {args.switch} off --yes")
    signals = Signals()
    signals.hold()
    session = open_session(args, signals)
    try:
        if args.list:
            return _list(session, args.json)
        if args.value == "on":
            return _on(session, args, signals)
        return _off(session, args, signals)
    finally:
        session.stop()
        signals.ignore()


def must_be_askable(args: argparse.Namespace, mend: str) -> None:
    """Before anything is asked of the server.

    Raises:
        UserError: nobody can be asked whether to do it, and ``--yes`` was not given.
    """
    from . import UserError

    if args.yes or (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    raise UserError("not confirmed: there is no terminal to ask on", "nothing was changed", mend, exit_codes.USAGE)


def confirm(args: argparse.Namespace, signals: Signals) -> None:
    """Ask, unless ``--yes``; Ctrl-C at the question ends the command.

    Raises:
        UserError: no.
    """
    from . import UserError

    signals.check()
    if args.yes:
        return
    signals.release()  # reading goes on after a signal that raises nothing
    print("Do it? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        said = sys.stdin.readline().strip().lower()
    finally:
        signals.hold()
    if said not in ("y", "yes"):
        raise UserError("not confirmed", "nothing was changed", "", exit_codes.REFUSED)


def open_session(args: argparse.Namespace, signals: Signals, agent: bool = True) -> Session:
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
            signals.check()
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
        raise server_gone()
    raise UserError(str(reply.get("error")), "nothing was changed", "", exit_codes.REFUSED)


def server_gone() -> Exception:
    """What an agent said last is of no use then."""
    from . import UserError

    return UserError("the server has gone", "what was changed in it went with it", "", exit_codes.SERVER_GONE)


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


def _on(session: Session, args: argparse.Namespace, signals: Signals) -> int:
    from . import UserError

    result = ask(session, "toggle", {"switch": args.switch, "on": True})
    if not any(r.get("back") for r in result.values()):
        _say(args, "nothing", f"{args.switch} is on already")
        return exit_codes.OK
    end = time.monotonic() + BACK_S
    while any(_row(g, args.switch)["state"] != "on" for g in ask(session, "toggle.list", {}).values()):
        signals.check()
        if time.monotonic() > end:
            waits = "it was asked for, and comes at the next step"
            raise UserError(f"{args.switch} is not back within {BACK_S:.0f} s", waits, "", exit_codes.FAILED)
        signals.sleep(0.05)
    _say(args, "on", f"{args.switch} is on")
    return exit_codes.OK


def _row(group: Mapping[str, Any], switch: str) -> Mapping[str, Any]:
    return next(s for s in group["switches"] if s["name"] == switch)


def _off(session: Session, args: argparse.Namespace, signals: Signals) -> int:
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
    confirm(args, signals)
    own = _flip(session, args)
    if args.keep:
        kept = session.command(None, "toggle.keep", {"switch": args.switch})
        if not kept.get("ok"):  # if it went back already, the watch says why
            _say(args, "timed", f"not kept: {kept.get('error')}; it goes back after {args.for_s:g} s")
    told = _watch(session, args, own, signals)
    return _see_back(session, args, own, signals, told)


def _flip(session: Session, args: argparse.Namespace) -> OwnFlip:
    from sgtop_core.switches.own import OwnFlip

    from . import UserError

    reply = session.command(None, "toggle", {"switch": args.switch, "on": False, "for_s": args.for_s})
    if reply.get("ok"):
        return OwnFlip(args.switch, reply["result"])
    if gone(session):
        raise server_gone()
    # No answer is not a no: what may have been done is asked back, and then it is known.
    back = session.command(None, "toggle.back", {"switch": args.switch, "mine": True})
    if not back.get("ok"):
        raise _unanswered(args.switch, str(reply.get("error")), None)
    undone = any(r.get("back") for r in back["result"].values())
    why = "it was asked for, and called off" if undone else "nothing was changed"
    raise UserError(str(reply.get("error")), why, "", exit_codes.NOT_READY if undone else exit_codes.REFUSED)


def _unanswered(switch: str, error: str, own: OwnFlip | None) -> Exception:
    """What is known to be true when the agents do not answer."""
    from . import UserError

    known = f"it is not known whether {switch} is off"
    if own is not None and own.took_effect:
        known = f"{switch} was off since step {min(own.steps.values())} when last seen"
    back = "the server turns it back on by itself, as this sgtop leaves now"
    return UserError(error, f"{known}; {back}", "sgtop toggle --list", exit_codes.NOT_READY)


def _ask_again(session: Session, op: str, args: Mapping[str, Any], own: OwnFlip) -> Any:
    """Of an operation that may be done again. A process that was stopped (SIGSTOP, a laptop's lid) finds its time to
    wait for an answer over when it goes on, or its connection closed for reading nothing, and another on its way.

    Raises:
        UserError: no answer, or the server has gone.
    """
    end = None
    while True:
        reply = session.command(None, op, args)
        if reply.get("ok"):
            return reply.get("result")
        if gone(session):
            raise server_gone()
        end = end or time.monotonic() + AGAIN_S
        if time.monotonic() > end:
            raise _unanswered(own.switch, str(reply.get("error")), own)
        time.sleep(0.05)


def _watch(session: Session, args: argparse.Namespace, own: OwnFlip, signals: Signals) -> bool:
    """Until it is back by itself, a signal comes, or it has been pending for too long; whether "off" was told."""
    told = False
    asked = time.monotonic()
    shown = -1
    while True:
        seen = own.look(_ask_again(session, "toggle.list", {}, own))
        told = told or _tell_off(args, own, seen)
        if signals.came or not seen.mine or (not told and time.monotonic() - asked > APPLY_S):
            return told
        left = seen.left_s
        if left is not None and int(left) != shown and sys.stderr.isatty() and not args.json:
            shown = int(left)
            print(f"\r\x1b[Kback in {shown} s; Ctrl-C: at once ", end="", file=sys.stderr, flush=True)
        signals.sleep(0.25)


def _tell_off(args: argparse.Namespace, own: OwnFlip, seen: Seen) -> bool:
    """Say that it is off, once all groups have it off, or have had it: a short flip may be over by now."""
    if not own.took_effect or (seen.mine and not seen.off):
        return False
    steps = list(own.steps.values())
    said = "is" if seen.mine else "was"
    _say(args, "off", f"{args.switch} {said} off since step {steps[0]}", steps=steps)
    return True


def _see_back(session: Session, args: argparse.Namespace, own: OwnFlip, signals: Signals, told: bool) -> int:
    from . import UserError

    if sys.stderr.isatty() and not args.json:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    back = _ask_again(session, "toggle.back", {"switch": args.switch, "mine": True}, own)
    by_itself = not any(r.get("back") for r in back.values())
    end = time.monotonic() + BACK_S
    while True:
        seen = own.look(_ask_again(session, "toggle.list", {}, own))
        told = told or _tell_off(args, own, seen)
        if seen.on or seen.other:
            break
        if time.monotonic() > end:
            waits = "it comes back at the next step"
            raise UserError(f"{args.switch} is not back within {BACK_S:.0f} s", waits, "", exit_codes.FAILED)
        time.sleep(0.05)
    why = f": {seen.why}" if by_itself and seen.why not in ("", TIME_OVER) else ""
    if seen.other:
        _say(args, "other", f"{args.switch} is not off for this sgtop any more{why}; it is off for {seen.other}")
        return exit_codes.OK
    if told:
        _say(args, "on", f"{args.switch} is on again{why}")
        return exit_codes.OK
    if signals.came:
        _say(args, "nothing", f"{args.switch} was called off before it took effect")
        return exit_codes.OK
    what = f"{args.switch} was not switched off"
    if why:
        raise UserError(what, seen.why, "", exit_codes.REFUSED)
    made = "no steps" if seen.made < 1 else "1 step" if seen.made == 1 else f"{seen.made} steps"
    reason = f"the server made {made} in that time, and a flip takes effect some steps after it is asked for"
    again = f"sgtop toggle {args.switch} off --for 60s, while requests run"
    raise UserError(what, reason, again, exit_codes.NOT_READY)
