"""``sgtop schema``: the JSON Schema of what ``--json`` prints."""

from __future__ import annotations

import argparse
import json

from . import exit_codes


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command takes nothing."""
    subparsers.add_parser("schema", help="print the JSON Schema (draft 2020-12) of --json")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from sgtop_core.schema import schema

    print(json.dumps(schema(), indent=2))
    return exit_codes.OK
