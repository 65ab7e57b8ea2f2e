"""``sgtop doctor``: what this host, this user and each server allow, and what to do about the rest."""

from __future__ import annotations

import argparse
import json

from . import options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``sgtop doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this host, user and server allow, and the command for each thing that is missing",
        description="Tries what sgtop needs; stops nothing and injects nothing.",
    )
    options.add_attach(parser)
    options.add_json(parser, "one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report; the code of the first reason why a running rank cannot be attached to."""
    from sgtop_probes import doctor

    report = doctor.report(args.attach)
    print(json.dumps(report.as_json(), indent=2) if args.json else report.as_text())
    return report.exit_code
