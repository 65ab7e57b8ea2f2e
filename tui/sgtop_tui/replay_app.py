"""The screen over a recording: the same board, a bar that says where it stands, and a player's keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from .app import SgtopApp
from .keys import PLAYER

if TYPE_CHECKING:
    from sgtop_core.recording.marks import Finding
    from sgtop_core.recording.replay import Position, ReplaySession

SEEK_S = 5.0
BAR_S = 0.25
"""Seconds between two looks at the position."""
HINTS = " p pause  ←→ 5 s  <> speed  n finding  N gap "


class ReplayApp(SgtopApp):
    """Plays a :class:`~sgtop_core.recording.replay.ReplaySession`; the last line is the time bar."""

    CSS = SgtopApp.CSS + "#bar { dock: bottom; height: 1; background: $surface; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding(k.key, k.action, k.label, show=False) for k in PLAYER]

    def __init__(self, source: ReplaySession, **kwargs: Any) -> None:
        super().__init__(source, **kwargs)
        self._player = source
        self._found: list[Finding] = []
        self._leaving = False

    def compose(self) -> ComposeResult:
        """The board, and the bar under it."""
        yield Static("", id="bar")
        yield from super().compose()

    def on_mount(self) -> None:
        """Begin to play, and to look for findings ahead."""
        super().on_mount()
        self.set_interval(BAR_S, self._show_bar)
        self.run_worker(self._scan, thread=True, group="scan")

    def on_unmount(self) -> None:
        """The scan ends with the screen."""
        self._leaving = True
        super().on_unmount()

    def _scan(self) -> None:
        from sgtop_core.recording.marks import findings

        with self._player.recording.reopen() as again:
            found = findings(again, stop=lambda: self._leaving)
        self._found = [f for f in found if f.began]

    def _show_bar(self) -> None:
        start = self._player.recording.start_ns
        moments = [((f.mono_ns - start) / 1e9, f.severity) for f in self._found]
        self.query_one("#bar", Static).update(bar(self._player.position(), moments, self.size.width, self._ascii))

    def action_play_pause(self) -> None:
        """Stop or go on."""
        self._player.pause()

    def action_seek(self, by: int) -> None:
        """Five seconds back or on."""
        self._player_work(lambda: self._player.seek(self._player.position().at_s + by * SEEK_S))

    def action_begin(self) -> None:
        """To the beginning."""
        self._player_work(lambda: self._player.seek(0.0))

    def action_speed(self, by: float) -> None:
        """Slower or faster."""
        self._player.set_speed(self._player.position().speed * by)

    def action_next_alert(self) -> None:
        """To the next moment at which a finding begins."""
        self._player_work(lambda: self._jump(self._player.next_alert, "finding"))

    def action_next_gap(self) -> None:
        """To the next long gap between steps."""
        self._player_work(lambda: self._jump(self._player.next_gap, "long gap between steps"))

    def _jump(self, to_next: Callable[[], bool], what: str) -> None:
        if not to_next():
            where = "in this recording" if self._player.loops else "after this"
            self.call_from_thread(self.notify, f"no {what} {where}", timeout=3)

    def _player_work(self, what: Callable[[], object]) -> None:
        """On a thread: a jump in a long recording reads minutes of it."""
        self.run_worker(what, thread=True, exclusive=True, group="player")


def bar(p: Position, moments: list[tuple[float, str]], width: int, ascii_only: bool = False) -> Text:
    """The time bar, ``width`` cells: state, time, the line with its findings, speed, keys if there is room."""
    done, rest, here, found = ("=", "-", "o", "!") if ascii_only else ("━", "─", "●", "▲")
    state = "end" if p.ended else "||" if p.paused else "|>" if ascii_only else "▶"
    head = f" {state:>3} {p.at_s:6.1f} of {p.length_s:.1f} s "
    tail = f" {p.speed:g}x" if ascii_only else f" {p.speed:g}×"
    tail += f"  {p.damage} damaged" if p.damage else ""
    hints = HINTS.replace("←→", "left right") if ascii_only else HINTS
    if len(head) + len(tail) + len(hints) + 20 <= width:
        tail += "  " + hints
    room = max(width - len(head) - len(tail) - 1, 4)
    at = round((room - 1) * min(p.at_s / p.length_s, 1.0)) if p.length_s > 0 else 0
    line = Text(head)
    line.append(done * at)
    line.append(here, style="bold")
    line.append(rest * (room - at - 1), style="dim")
    for seconds, severity in moments:
        cell = len(head) + round((room - 1) * min(seconds / p.length_s, 1.0)) if p.length_s > 0 else len(head)
        if cell != len(head) + at:
            mark = Text(found, style={"critical": "red", "warning": "yellow"}.get(severity, "dim"))
            line = Text.assemble(line[:cell], mark, line[cell + 1 :])
    line.append(tail, style="dim")
    return line
