"""How the attachment stands, said on stderr by commands that run for long and show no screen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import exit_codes

if TYPE_CHECKING:
    from sgtop_core.model.snapshot import Snapshot


CODES = {"starting": exit_codes.NOT_READY, "hung": exit_codes.NOT_READY, "waiting": exit_codes.SERVER_GONE}
"""State of the attachment → exit code of a command that ends in it; 0 in all others."""


class Standing:
    """Call it with every snapshot: a line whenever something else than the usual begins, and when it is over."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        """``before``: called before a line is printed, to clear a line of progress."""
        self._state = "live"
        self._before = before

    @property
    def code(self) -> int:
        """The exit code of a command that ends now."""
        return CODES.get(self._state, exit_codes.OK)

    def __call__(self, shot: Snapshot) -> None:
        """Look at a snapshot."""
        state, message = shot.attach.state, shot.attach.message
        if state == self._state or state in ("connecting", "lost"):  # on the way to something
            return
        self._state = state
        text = {
            "live": "attached",
            "agentless": f"without the agent: {message}",
            "waiting": "the server went away; waiting for it to come back",
        }.get(state, f"{state}: {message}")
        self._before()
        print(f"sgtop: {text}", file=sys.stderr, flush=True)
