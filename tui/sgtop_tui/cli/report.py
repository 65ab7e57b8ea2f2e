"""``sgtop report``: a recording in figures."""

from __future__ import annotations

import argparse

from . import exit_codes, options

TABLES = ("steps", "forwards", "gaps", "stages", "gc", "contention", "kernels", "queues", "alerts")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``report``."""
    p = subparsers.add_parser(
        "report",
        help="a recording in figures: text, JSON or CSV",
        description="The figures of a whole recording: steps by mode, gaps by cause, stages, garbage collection, who "
        "took the CPU, kernels (columns as in nsys), findings.",
    )
    p.add_argument("file", metavar="FILE")
    options.add_json(p, "the figures as one JSON object")
    p.add_argument("--csv", choices=TABLES, metavar="TABLE", help=f"one table as CSV: {', '.join(TABLES)}")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    import json

    from sgtop_core.recording.reader import Recording
    from sgtop_core.report import measure, tables, text

    with Recording(args.file) as recording:
        figures = measure.measure(recording)
    if args.json:
        print(json.dumps(tables.as_json(figures), ensure_ascii=False, indent=2))
    elif args.csv:
        print(tables.as_csv(next(t for t in tables.tables(figures) if t.key == args.csv)), end="")
    else:
        print(text.text(figures), end="")
    return exit_codes.OK
