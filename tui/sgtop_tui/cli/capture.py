"""``sgtop capture``: evidence for others, a recording of the perf binary beside sgtop's own of the same seconds."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from . import UserError, exit_codes, options, signals

if TYPE_CHECKING:
    from sgtop_core.model.snapshot import Snapshot
    from sgtop_core.session import Session
    from sgtop_probes.sched.capture import Recording

READY_S = 10.0
"""Longest wait for the ranks before perf starts; it starts then anyway, and the recording says what was there."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``capture``."""
    p = subparsers.add_parser(
        "capture",
        help="save a recording of the perf binary beside sgtop's own",
        description="Run the perf binary for some seconds and save what it recorded beside sgtop's own recording of "
        "the same time, in one folder with the commands that open both. sgtop itself needs no perf binary.",
    )
    options.add_attach(p)
    p.add_argument(
        "--perf-sched",
        type=options.duration,
        required=True,
        metavar="TIME",
        help="how long `perf sched record` runs, e.g. 5s: every switch of the host, about 1 MB for 10,000 of them",
    )
    p.add_argument("-o", "--output", metavar="FOLDER", help="default: sgtop-capture-TIME here; it must not exist")


def run(args: argparse.Namespace) -> int:
    """Record both, then print the folder."""
    with signals.as_interrupt():
        return _capture(args)


def _capture(args: argparse.Namespace) -> int:
    from sgtop_probes.sched import capture

    try:
        binary = capture.find_perf()
    except capture.CaptureError as e:
        raise UserError(e.what, e.why, e.mend, exit_codes.UNSUPPORTED) from e
    from sgtop_core.recording.keeper import attach
    from sgtop_core.session import Session, SessionOptions

    folder = args.output or time.strftime("sgtop-capture-%Y%m%d-%H%M%S")
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        raise UserError(f"{folder} exists", "a capture is never written over another", "choose another name with -o")
    own, theirs = os.path.join(folder, "sgtop.sgtop"), os.path.join(folder, "perf-sched.data")
    session = Session(args.attach, SessionOptions(readonly=args.readonly))
    recorder = attach(session, ring_s=0.0, on_line=lambda line: print(f"sgtop: {line}", file=sys.stderr))
    try:
        recorder.start(own)
        session.start()
        ready(session)
        print(f"sgtop: perf sched record for {args.perf_sched:g} s …", file=sys.stderr)
        try:
            recording = capture.record(theirs, args.perf_sched, perf_binary=binary)
        except capture.CaptureError as e:
            permission = "permission" in e.mend or "sudo" in e.mend
            raise UserError(e.what, e.why, e.mend, exit_codes.NO_PERMISSION if permission else exit_codes.FAILED) from e
        time.sleep(0.5)  # the agents' last frames of that time
        last = session.snapshot()
        session.stop()
        recorder.stop()
        with open(os.path.join(folder, "README.txt"), "w", encoding="utf-8") as f:
            f.write(explain(last, recording))
    except BaseException:
        session.stop()
        recorder.close()
        shutil.rmtree(folder, ignore_errors=True)  # half a capture is no evidence; the folder is our own
        raise
    recorder.close()
    print(folder)
    return exit_codes.OK


def ready(session: Session, seconds: float = READY_S) -> None:
    """Wait until every rank is attached, or known not to be, at most ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ranks = session.snapshot().ranks
        if ranks and all(r.state not in ("connecting", "starting") for r in ranks):
            return
        time.sleep(0.1)


def explain(snapshot: Snapshot, recording: Recording) -> str:
    """What is in the folder and how to open it."""
    begin, end = recording.start_ns / 1e9, recording.end_ns / 1e9
    lines = [
        f"Captured {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(snapshot.time))}, {recording.perf_version}",
        f"{' '.join(recording.command)}",
        f"perf ran from {begin:.6f} to {end:.6f} s; both recordings use CLOCK_MONOTONIC.",
        "",
        "  sgtop replay sgtop.sgtop",
        "  perf sched latency -i perf-sched.data",
    ]
    lines += [
        f"  perf sched timehist -i perf-sched.data --state --tid {r.pid}    # {r.rank}"
        for r in snapshot.ranks
        if r.pid is not None
    ]
    active = [a for a in snapshot.alerts if a.active]
    if active:
        lines += ["", "Findings at the end:", *(f"  {a.title}\n    {a.evidence}\n    → {a.next}" for a in active)]
    return "\n".join(lines) + "\n"
