"""``sgtop export``: a recording for Perfetto, as one HTML page, or as CSV."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import exit_codes, options
from .replay import warn


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``export``."""
    p = subparsers.add_parser(
        "export",
        help="a recording for Perfetto, as an HTML page, or as CSV",
        description="perfetto: a trace for ui.perfetto.dev. html: one page that needs no network. csv: a folder with "
        "the report's tables. Times are from the start of the recording.",
    )
    p.add_argument("file", metavar="FILE")
    p.add_argument("--to", required=True, choices=("perfetto", "html", "csv"))
    p.add_argument("-o", "--output", required=True, metavar="OUT", help="file, for csv a folder")
    p.add_argument("--from", dest="from_s", type=options.duration, metavar="TIME", help="begin here")
    p.add_argument("--until", dest="until_s", type=options.duration, metavar="TIME", help="end here")
    p.add_argument("-f", "--force", action="store_true", help="write over existing files")


def run(args: argparse.Namespace) -> int:
    """Write it; the path goes to stdout."""
    if args.to == "csv":
        return _csv(args)
    from sgtop_core.export.run import export

    done = export(args.file, args.to, args.output, from_s=args.from_s, until_s=args.until_s, overwrite=args.force)
    warn(done.complete, done.damage)
    span = f"{done.from_s:.1f} s to {done.until_s:.1f} s"
    print(f"sgtop: {done.events:,} events, {span}".replace(",", " "), file=sys.stderr)
    if done.cut:
        print("sgtop: there is more than a viewer can take; --from and --until choose another part", file=sys.stderr)
    print(done.path)
    return exit_codes.OK


def _csv(args: argparse.Namespace) -> int:
    from sgtop_core.recording.reader import Recording
    from sgtop_core.report import measure, tables

    from . import UserError

    if args.from_s is not None or args.until_s is not None:
        why = "the tables are of the whole recording"
        raise UserError("--from and --until go with perfetto and html", why, "", exit_codes.USAGE)
    with Recording(args.file) as recording:
        figures = measure.measure(recording)
    warn(figures.complete, figures.damage)
    folder = Path(args.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for t in tables.tables(figures):
            with (folder / f"{t.key}.csv").open("w" if args.force else "x", encoding="utf-8") as f:
                f.write(tables.as_csv(t))
    except FileExistsError as e:
        raise UserError(f"{e.filename} is there already", "", "-f writes over it") from None
    except OSError as e:
        raise UserError(f"{folder} cannot be written", e.strerror or str(e)) from e
    print(folder)
    return exit_codes.OK
