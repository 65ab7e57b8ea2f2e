"""The screen over a recording: the same board, and a player's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType

from .app import SgtopApp

if TYPE_CHECKING:
    from sgtop_core.recording.replay import ReplaySession

SEEK_S = 5.0


class ReplayApp(SgtopApp):
    """Plays a :class:`~sgtop_core.recording.replay.ReplaySession`; where it stands is said in the header."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "play_pause", "pause", show=False),
        Binding("left", "seek(-1)", "back 5 s", show=False),
        Binding("right", "seek(1)", "on 5 s", show=False),
        Binding("less_than_sign", "speed(0.5)", "slower", show=False),
        Binding("greater_than_sign", "speed(2)", "faster", show=False),
        Binding("home", "begin", "to the beginning", show=False),
        Binding("n", "next_alert", "next finding", show=False),
        Binding("N", "next_gap", "next long gap", show=False),
    ]

    def __init__(self, source: ReplaySession, **kwargs: Any) -> None:
        super().__init__(source, **kwargs)
        self._player = source

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
        self._player_work(self._player.next_alert)

    def action_next_gap(self) -> None:
        """To the next long gap between steps."""
        self._player_work(self._player.next_gap)

    def _player_work(self, what: Any) -> None:
        """On a thread: a jump in a long recording reads minutes of it."""
        self.run_worker(what, thread=True, exclusive=True, group="player")
