"""Runs the real app headless on fed snapshots, and reads its screen back as text."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sgtop_core.model.snapshot import Snapshot
from sgtop_tui.app import SgtopApp
from textual.pilot import Pilot


class FakeSource:
    """A source whose snapshots the test chooses; what the app asks of it is written down."""

    def __init__(self, snapshot: Snapshot, readonly: bool = False) -> None:
        self.current = snapshot
        self.readonly = readonly
        self.windows: list[float] = []
        self.commands: list[tuple[str | None, str]] = []
        self.answer: Mapping[str, Any] = {"ok": True, "result": "scheduler.py:1 event_loop_overlap"}
        self.stopped = 0
        self.error: Exception | None = None

    def snapshot(self) -> Snapshot:
        if self.error is not None:
            raise self.error
        return self.current

    def set_window(self, seconds: float) -> None:
        self.windows.append(seconds)

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        self.commands.append((rank, op))
        if self.error is not None:
            raise self.error
        return self.answer

    def stop(self) -> None:
        self.stopped += 1


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def running(
    snapshot: Snapshot, size: tuple[int, int], **options: Any
) -> AsyncIterator[tuple[SgtopApp, Pilot[int]]]:
    """The app at ``size``, showing ``snapshot``."""
    source = options.pop("source", None) or FakeSource(snapshot)
    app = SgtopApp(source, poll=False, clock=options.pop("clock", Clock()), **options)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.feed(snapshot)
        await pilot.pause()
        await pilot.pause()
        yield app, pilot


def screen_text(app: SgtopApp) -> str:
    """What the terminal shows: the compositor's own lines, filters and pages included."""
    width, height = app.size
    lines = []
    for strip in app.screen._compositor.render_strips():
        lines.append("".join(segment.text for segment in strip).ljust(width).rstrip())
    return "\n".join(lines[:height])
