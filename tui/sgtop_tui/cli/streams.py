"""stdin, stdout and stderr as they may really be: closed, on a full disk, or in an encoding without our glyphs."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from typing import TextIO

ERRORS = "sgtop-ascii"
"""Name of the codec error handler: ASCII for what an encoding lacks."""

_FAIL = ("strict", "backslashreplace", "surrogateescape")
"""Handlers that Python chooses by itself: they fail on our glyphs, or write escapes. Another was asked for."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def prepare() -> None:
    """Open what the caller closed, and let text through in every encoding.

    A closed descriptor (``>&-``) would go to the next file or socket that is opened: what is printed would end there.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if fd == 0 else os.O_WRONLY)  # the lowest free one: this
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    codecs.register_error(ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _FAIL:
            stream.reconfigure(errors=ERRORS)


def say(text: str) -> None:
    """A line on stderr; nobody can be told when stderr itself takes none."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Give the stream somewhere to flush to: Python flushes at exit and would complain again."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


def no_room(error: BaseException) -> bool:
    """Whether ``error`` says that a stream's disk takes no more (an error of a file would name the file)."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from ..glyphs import to_ascii

    # no double quotes: the text may be JSON
    return to_ascii(error.object[error.start : error.end]).replace('"', "'"), error.end
