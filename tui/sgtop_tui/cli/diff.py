"""``sgtop diff``: what changed between two recordings, and how much of it is noise."""

from __future__ import annotations

import argparse

from . import exit_codes, options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``diff``."""
    p = subparsers.add_parser(
        "diff",
        help="what changed between two recordings, with the noise",
        description="Compare two recordings, rank by rank. Noise comes from each recording's own 5 s blocks: a change "
        "counts when the 95 % interval of the difference does not hold 0.",
    )
    p.add_argument("a", metavar="A")
    p.add_argument("b", metavar="B")
    p.add_argument("--all", action="store_true", help="also what did not change")
    options.add_json(p, "the comparison as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    import json

    from sgtop_core.recording.reader import Recording
    from sgtop_core.report import diff, measure

    with Recording(args.a) as a, Recording(args.b) as b:
        d = diff.diff(measure.measure(a), measure.measure(b))
    if args.json:
        print(json.dumps(diff.as_json(d), ensure_ascii=False, indent=2))
    else:
        print(diff.text(d, everything=args.all), end="")
    return exit_codes.OK
