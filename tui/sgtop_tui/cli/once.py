"""``sgtop --once``: look for a while, print what was seen as text or JSON, and end. No Textual."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from . import exit_codes
from .signals import Signals
from .standing import CODES

if TYPE_CHECKING:
    from sgtop_core.model.snapshot import Snapshot
    from sgtop_core.session import Session

LOOK_S = 2.0
ATTACH_S = 15.0
"""Longest wait for the first figures; with a server that starts or hangs that is an answer too."""
GONE_S = 3.0
"""Longest wait after the look for whether the server has gone, if its ranks were lost."""


def run(args: argparse.Namespace) -> int:
    """Look and print."""
    from sgtop_core.session import Session, SessionOptions
    from sgtop_core.textout import text

    look_s = args.for_s or LOOK_S
    window = getattr(args, "window", 5.0)
    kernels = getattr(args, "kernels", None) or "off"
    options = SessionOptions(readonly=args.readonly, nvtx=args.nvtx, window_s=max(window, look_s), kernels=kernels)
    session = Session(args.attach, options)
    with Signals() as signals:
        session.start()
        try:
            shot, gone = observe(session, look_s, signals)
        finally:
            session.stop()
    if args.json:
        from sgtop_core.jsonout import as_json

        print(json.dumps(as_json(shot), ensure_ascii=False, indent=2))
    else:
        out = text(shot)
        print(_ascii(out) if args.ascii else out, end="")
    if shot.attach.state == "agentless":
        print(f"sgtop: without the agent: {shot.attach.message}", file=sys.stderr)
    if gone:
        print(
            f"sgtop: the server went away; this is what was seen until then ({shot.covered_s:.1f} s)", file=sys.stderr
        )
        return exit_codes.SERVER_GONE
    return CODES.get(shot.attach.state, exit_codes.OK)


def observe(session: Session, look_s: float, signals: Signals) -> tuple[Snapshot, bool]:
    """The snapshot after ``look_s`` seconds of figures, or the last one if none came in time.

    If the server goes away meanwhile: the last one with figures, and True.

    Raises:
        KeyboardInterrupt: a signal came before that.
    """
    end = time.monotonic() + ATTACH_S
    while _connecting(session.snapshot()) and time.monotonic() < end:
        signals.check()
        signals.sleep(0.02)
    first = session.snapshot()
    if first.attach.state in ("starting", "waiting"):
        return first, False
    end = time.monotonic() + look_s
    seen: Snapshot | None = None
    # snapshots end some 0.4 s in the past: wait until the look is in them, and a little longer at most
    while True:
        signals.check()
        s = session.snapshot()
        if s.attach.state == "waiting" and seen is not None:
            return seen, True
        live = any(r.state == "live" for r in s.ranks)
        if live and s.covered_s > 0:
            seen = s
        now = time.monotonic()
        over = (now >= end and s.covered_s >= look_s) or now >= end + 1.0
        if over and (live or seen is None or now >= end + GONE_S):  # a lost rank may mean that the server goes
            return s, False
        signals.sleep(0.02)


def _connecting(shot: Snapshot) -> bool:
    """Some rank's agent, or the server itself, has not answered yet."""
    return shot.attach.state == "connecting" or any(r.state == "connecting" for r in shot.ranks)


def _ascii(out: str) -> str:
    for char, plain in (("→", "->"), ("–", "-"), ("µ", "u"), ("×", "x"), ("÷", "/"), ("…", "...")):
        out = out.replace(char, plain)
    return out.encode("ascii", "replace").decode()
