"""What cannot be done, in words: what is wrong, why, and the exact command or flag that mends it.

The command line prints these three lines and ends with ``exit_code`` (the numbers are those of
``sgtop_tui.cli.exit_codes``, which cannot be imported from here: layers never look back).
"""

from __future__ import annotations

FAILED, NO_SERVER, NOT_SGLANG, NO_PERMISSION, NOT_READY, SERVER_GONE, UNSUPPORTED = 1, 3, 4, 5, 6, 7, 9

KIND_EXIT = {
    "permission": NO_PERMISSION,
    "starting": NOT_READY,
    "hung": NOT_READY,
    "traced": NOT_READY,
    "gone": SERVER_GONE,
    "foreign": FAILED,
    "unsupported": UNSUPPORTED,
    "failed": FAILED,
}


class ProbeError(Exception):
    """Something that a user asked for and that cannot be done."""

    def __init__(self, what: str, why: str = "", mend: str = "", exit_code: int = FAILED) -> None:
        super().__init__(what)
        self.what, self.why, self.mend, self.exit_code = what, why, mend, exit_code

    def __str__(self) -> str:
        return ": ".join(part for part in (self.what, self.why) if part)


class TargetError(ProbeError):
    """``T`` names no SGLang server of this machine."""

    def __init__(self, what: str, why: str = "", mend: str = "", exit_code: int = NO_SERVER) -> None:
        super().__init__(what, why, mend, exit_code)


class AttachError(ProbeError):
    """No way into a scheduler process.

    ``kind`` tells a caller what to do next:

    * ``permission``: the user or an administrator must grant something (``mend`` says what);
    * ``starting``: the server still loads or captures graphs; wait and try again;
    * ``hung``: the main thread does not come back to Python; the verdict stands in ``why``;
    * ``traced``: another tracer holds the process; try again when it has gone;
    * ``gone``: the process has ended;
    * ``foreign``: an agent of another sgtop version runs there;
    * ``unsupported``: this process, interpreter or machine cannot be attached to at all;
    * ``failed``: anything else.
    """

    def __init__(self, what: str, why: str = "", mend: str = "", kind: str = "failed") -> None:
        super().__init__(what, why, mend, KIND_EXIT[kind])
        self.kind = kind
