"""What can go wrong with a recording, in words."""

from __future__ import annotations


class RecordingError(Exception):
    """A recording that cannot be read or written.

    ``what`` says what is wrong, ``why`` the reason, ``mend`` what helps: the command line prints them.
    """

    def __init__(self, what: str, why: str = "", mend: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.mend = what, why, mend


class DamagedChunk(RecordingError):
    """One chunk whose bytes are not what was written; the others can still be read."""
