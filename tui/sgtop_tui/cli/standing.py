"""How the attachment stands, said on stderr by commands that run for long and show no screen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgtop_core.model.snapshot import Snapshot


class Standing:
    """Call it with every snapshot: a line whenever something else than the usual begins, and when it is over."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        """``before``: called before a line is printed, to clear a line of progress."""
        self._state = "live"
        self._before = before

    @property
    def gone(self) -> bool:
        """The server is gone."""
        return self._state == "waiting"

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
