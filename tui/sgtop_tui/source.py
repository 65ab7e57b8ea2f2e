"""What the screen needs of its data: one snapshot at a time, and a few words back.

:class:`sgtop_core.session.Session` is one; a replay and the fakes of the tests are others. Every method may be called
from any thread and none of them waits for the server, except ``command``, which the screen calls on a worker thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sgtop_core.model.snapshot import Snapshot


class Source(Protocol):
    """A source of snapshots."""

    @property
    def readonly(self) -> bool:
        """Whether everything that would change the server is refused."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; never waits."""

    def set_window(self, seconds: float) -> None:
        """Choose the window of all figures, seconds."""

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the agent of ``rank`` (None: all) to do ``op``; its reply frame (``ok``, ``result`` or ``error``)."""

    def stop(self) -> None:
        """Detach: every hook undone, every thread ended. Safe to call twice."""
