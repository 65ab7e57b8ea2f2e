"""A headless command over a session that is simulated: ``python -m tests.tui.headless_child STATE ARGS…``.

On stderr it says "ready" after a few looks and "stopping" when it ends, which takes it half a second.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sgtop_core.session
from sgtop_core.model.snapshot import Snapshot
from sgtop_tui.cli import main

from tests.recording.live import Live


class Simulated:
    """What the commands use of a session. ``state``: that of the attachment."""

    state = "live"
    ends_in_s = 0.0

    def __init__(self, target: str | None, options: object) -> None:
        self.taps: list[Callable[..., None]] = []
        self._live = Live("decode-bound")
        self._looks = 0

    def start(self) -> None:
        """Half a second at once."""
        for tap in self.taps:
            for e in self._live.entries:
                tap(*e)
        self._live.taps += self.taps
        self._live.run(0.5)

    def snapshot(self) -> Snapshot:
        """Each look is a quarter of a second later."""
        self._looks += 1
        self._live.run(0.25)
        if self._looks == 6:
            print("ready", file=sys.stderr, flush=True)
        shot = self._live.snapshots[-1]
        return replace(shot, attach=replace(shot.attach, state=self.state, message="words"))

    def command(self, *_: Any) -> dict[str, Any]:
        """There is no server."""
        return {"ok": False}

    def stop(self) -> None:
        """Long enough for a second signal."""
        with contextlib.suppress(OSError):
            print("stopping", file=sys.stderr, flush=True)
        time.sleep(self.ends_in_s)


if __name__ == "__main__":
    Simulated.state, Simulated.ends_in_s = sys.argv[1], 0.5
    sgtop_core.session.Session = Simulated  # type: ignore[assignment,misc]
    sys.exit(main(sys.argv[2:]))
