"""Options that several commands share, so that one word means the same thing everywhere.

Options have no default in a command's own parser (``argparse.SUPPRESS``): the top parser gives the default, so
``sgtop --attach :30000 doctor`` and ``sgtop doctor --attach :30000`` are the same.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}

DEFAULTS: dict[str, Any] = {
    "attach": None,
    "readonly": False,
    "ascii": False,
    "json": False,
}
"""Defaults of the shared options; the top parser sets them."""


def duration(text: str) -> float:
    """Seconds from ``2``, ``2s``, ``500ms``, ``1m``, ``1h``.

    Raises:
        argparse.ArgumentTypeError: anything else, and nothing that is not longer than zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 2s, 500ms or 1m")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds <= 0:
        raise argparse.ArgumentTypeError("a time must be longer than zero")
    return seconds


THEMES = ("default", "blue-orange", "light")
"""Names in :data:`sgtop_tui.theme.PALETTES`, which is not loaded for a command line: it costs Textual."""

WINDOWS = {5.0: "5s", 60.0: "60s", 600.0: "10m"}
"""Windows that figures can be had over, s."""


def window(text: str) -> float:
    """Seconds of one of the windows.

    Raises:
        argparse.ArgumentTypeError: any other time.
    """
    seconds = duration(text)
    if seconds not in WINDOWS:
        raise argparse.ArgumentTypeError(f"{text!r}: there are windows of {', '.join(WINDOWS.values())}")
    return seconds


def add_attach(parser: argparse.ArgumentParser) -> None:
    """``--attach T``: which server."""
    parser.add_argument(
        "--attach",
        "-a",
        metavar="T",
        default=argparse.SUPPRESS,
        help="which server: :PORT, HOST:PORT of this machine, or pid:N; left out: the only one that runs",
    )


def add_readonly(parser: argparse.ArgumentParser) -> None:
    """``--readonly``: nothing that would change the server."""
    parser.add_argument(
        "--readonly", action="store_true", default=argparse.SUPPRESS, help="refuse everything that changes the server"
    )


def add_ascii(parser: argparse.ArgumentParser) -> None:
    """``--ascii``: no glyph outside ASCII."""
    parser.add_argument("--ascii", action="store_true", default=argparse.SUPPRESS, help="draw with ASCII only")


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """``--json``: data for programs on stdout; ``what`` says which."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=what)
