"""Asking the source for snapshots, on a thread; what it says reaches the app as messages."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sgtop_core.model.snapshot import Snapshot
from textual.message import Message

from .source import Source

PERIOD_S = 0.25
"""Seconds between snapshots."""


class NewSnapshot(Message):
    """A snapshot to draw."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class SourceFailed(Message):
    """The source raised; nothing more will come."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Poller:
    """Posts a snapshot every ``PERIOD_S``, never more than one ahead of the screen. ``post``: False when it has ended.

    ``drawn`` says that the last one is on the screen.
    """

    def __init__(self, source: Source, post: Callable[[Message], bool]) -> None:
        self._source, self._post = source, post
        self._drawn = threading.Event()
        self._drawn.set()
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._ask, name="sgtop-screen", daemon=True).start()

    def drawn(self) -> None:
        """The next snapshot may come."""
        self._drawn.set()

    def stop(self) -> None:
        """No more snapshots."""
        self._ended.set()

    def _ask(self) -> None:
        last: Snapshot | None = None
        while not self._ended.wait(0 if last is None else PERIOD_S):
            if not self._drawn.wait(1.0):
                continue
            try:
                last = self._source.snapshot()
            except Exception as error:
                self._post(SourceFailed(error))
                return
            self._drawn.clear()
            if not self._post(NewSnapshot(last)):
                return
