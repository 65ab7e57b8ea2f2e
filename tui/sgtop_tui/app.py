"""The interactive screen: keys, pages, and a snapshot four times a second.

A poller posts each snapshot as one message; the app makes one look of it and the board repaints what changed. While the
last one is not drawn yet no further one is posted: a slow terminal makes the screen slower, never the queue longer.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.style import Style
from sgtop_core.model.snapshot import Rank, Snapshot
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from . import keys, recordings, theme
from .look import KERNEL_SORTS, SORTS, Choices, Look
from .palette_commands import palette_commands
from .panels import BY_NUMBER
from .panels.kernels import unusable
from .poller import NewSnapshot, Poller, SourceFailed
from .screens import pages, switches
from .screens.change_page import ChangePage
from .screens.page import Page
from .source import Source
from .widgets.ascii_filter import AsciiFilter
from .widgets.canvas import Canvas
from .widgets.driver import Driver

if TYPE_CHECKING:
    from sgtop_core.recording.recorder import Recorder

WINDOWS_S = (5.0, 60.0, 600.0)
TELL_AFTER_S = 2.0
"""Seconds of steps after a flip before it is said what it did."""


class SgtopApp(App[int]):
    """The board and its keys.

    Args:
        source: where snapshots come from; the caller stops it.
        ascii_only: draw with ASCII.
        palette: name of a theme in :data:`theme.PALETTES`.
        window_s: window of all figures at the start.
        poll: ask the source on a thread; tests feed snapshots themselves.
        clock: seconds, for the age of a frozen screen.
        recorder: sees what the source takes in; for R and S.
    """

    CSS = """
    Screen { background: $background; }
    #filter { dock: bottom; height: 1; border: none; padding: 0 1; background: $surface; display: none; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(k.key, k.action, k.label, show=False, priority=k.key == "ctrl+c")
            for k in keys.KEYS
            if k.action != "command_palette"
        ),
        *(Binding(str(n), f"maximise('{panel.key}')", panel.title, show=False) for n, panel in BY_NUMBER.items()),
    ]
    ENABLE_COMMAND_PALETTE = True
    AUTO_FOCUS = None
    """Keys belong to the board until the filter is opened."""

    def __init__(
        self,
        source: Source,
        *,
        ascii_only: bool = False,
        palette: str = "default",
        window_s: float = WINDOWS_S[0],
        poll: bool = True,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder | None = None,
    ) -> None:
        no_color = bool(os.environ.get("NO_COLOR"))
        super().__init__(driver_class=Driver, ansi_color=True if no_color else None)
        self.source = source
        self.failure: BaseException | None = None
        """What ended the screen, if it was not the reader."""
        self._plain = no_color
        self._palette = theme.PALETTES.get(palette, theme.DEFAULT)
        self._window_s = window_s
        self._poll = poll
        self._clock = clock
        self._recorder = recorder
        recording = recorder is not None and recorder.state().path is not None
        self._choices = Choices(readonly=source.readonly, recording=recording)
        self._snapshot: Snapshot | None = None
        self._frozen: tuple[Snapshot, float] | None = None
        self._look: Look | None = None
        self._told_flips: set[tuple[str, int]] = set()
        self._poller = Poller(source, self.post_message)
        self._ascii = ascii_only
        if ascii_only:
            self._filters.append(AsciiFilter())
        for p in theme.PALETTES.values():
            self.register_theme(theme.textual_theme(p))
        self.theme = f"sgtop-{self._palette.name}"
        self.title = "sgtop"

    # --- life -------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """The board, and the filter's line when it is open."""
        yield Canvas(self._ascii)
        hint = "part of a rank (name or state), finding or kernel; enter keeps it, esc clears it"
        line = Input(placeholder=hint, id="filter")
        line.can_focus = False
        yield line

    def on_mount(self) -> None:
        """Begin to ask the source."""
        self.source.set_window(self._window_s)
        if self._poll:
            # All that is loaded now lives as long as the screen; the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                # The terminal is put back and the server left alone, whoever ends us short of kill -9.
                loop.add_signal_handler(number, self.action_leave)
            self._poller.start()

    def on_unmount(self) -> None:
        """No more snapshots."""
        self._poller.stop()

    def on_source_failed(self, message: SourceFailed) -> None:
        """End, and let the command say why."""
        self._end_with(message.error)

    def _end_with(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self.exit(return_code=1)

    def _handle_exception(self, error: Exception) -> None:
        """No traceback reaches a user: the command reports ``failure`` in a line. Tests see the exception itself."""
        self.failure = self.failure or error
        if self._poll and not os.environ.get("SGTOP_DEBUG"):
            self._return_code = 1
            self._close_messages_no_wait()
        else:
            super()._handle_exception(error)

    # --- drawing ----------------------------------------------------------------------------------

    def on_new_snapshot(self, message: NewSnapshot) -> None:
        """Draw it."""
        self.feed(message.snapshot)
        self._poller.drawn()

    def feed(self, snapshot: Snapshot) -> None:
        """Take ``snapshot`` as the newest and draw it, or keep it for later while frozen."""
        self._snapshot = snapshot
        if snapshot.switches:
            self._tell_flips(snapshot)
        self.redraw()

    def redraw(self) -> None:
        """Draw the newest snapshot, or the frozen one, under the present choices."""
        snapshot = self._snapshot
        if self._frozen is not None:
            snapshot, since = self._frozen
            self._choices = replace(self._choices, frozen_s=self._clock() - since)
        elif self._choices.frozen_s is not None:
            self._choices = replace(self._choices, frozen_s=None)
        if snapshot is None:
            return
        self._look = Look(snapshot, self._choices)
        with self.batch_update():
            self.board.show(self._look, self.line_styles, self._stale_styles())

    @property
    def board(self) -> Canvas:
        """The board, below whatever page is open."""
        return self.screen_stack[0].query_one(Canvas)

    @property
    def line_styles(self) -> Mapping[str, Style]:
        """Style word → style, of the theme."""
        return theme.plain_styles() if self._plain else theme.styles(self._palette)

    def _stale_styles(self) -> Mapping[str, Style]:
        return theme.stale_styles(None if self._plain else self._palette)

    # --- actions ----------------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Quit; the command that opened the screen detaches."""
        self.exit(return_code=0)

    def action_help(self) -> None:
        """The help page."""
        self.push_screen(Page("help", pages.help_lines(self._page_width()), self.line_styles))

    def action_explain(self) -> None:
        """What the numbers mean."""
        if self._look is not None:
            on_screen = sorted(self.board.rects, key=lambda k: (self.board.rects[k].y, self.board.rects[k].x))
            lines = pages.explain_lines(self._look, on_screen, self._page_width())
            self.push_screen(Page("what the numbers mean", lines, self.line_styles))

    def _page_width(self) -> int:
        return min(pages.WIDTH, max(30, self.size.width - 6))

    def action_freeze(self) -> None:
        """Hold the screen still, or let it go."""
        if self._frozen is not None:
            self._frozen = None
        elif self._snapshot is not None:
            self._frozen = (self._snapshot, self._clock())
        self.redraw()

    def action_maximise(self, key: str) -> None:
        """One panel large; the same key again brings the others back."""
        self._choose(maximised=None if self._choices.maximised == key else key)

    def action_step_back(self) -> None:
        """Undo the last of: filter, large panel, chosen rank."""
        if self._choices.filter or self._filter.has_class("open"):
            self._filter.value = ""
            self._close_filter()
            self._choose(filter="")
        elif self._choices.maximised is not None:
            self._choose(maximised=None)
        elif self._choices.rank is not None:
            self._choose(rank=None)

    def action_window(self, step: int) -> None:
        """A longer or shorter window."""
        at = min(range(len(WINDOWS_S)), key=lambda i: abs(WINDOWS_S[i] - self._window_s))
        self._window_s = WINDOWS_S[max(0, min(len(WINDOWS_S) - 1, at + step))]
        self.source.set_window(self._window_s)

    def action_sort(self) -> None:
        """The next order of rank rows, or of kernels where their panel is large."""
        if self._choices.maximised == "kernels":
            at = KERNEL_SORTS.index(self._choices.kernel_sort)
            self._choose(kernel_sort=KERNEL_SORTS[(at + 1) % len(KERNEL_SORTS)])
            return
        at = SORTS.index(self._choices.sort)
        self._choose(sort=SORTS[(at + 1) % len(SORTS)])

    def action_kernels(self) -> None:
        """Kernel tracing of every rank: off, windows, continuous, off."""
        rank = self._look.focus if self._look is not None else None
        now = rank.tracing.mode if rank is not None and rank.tracing is not None else "off"
        mode = {"off": "windows", "windows": "on"}.get(now, "off")
        self.run_worker(lambda: self._kernels(mode), thread=True, exclusive=True, exit_on_error=False)

    def _kernels(self, mode: str) -> None:
        try:
            reply = self.source.command(None, "kernels", {"mode": mode})
            bad = unusable(reply.get("result")) if reply.get("ok") else str(reply.get("error", "refused"))
        except Exception as error:
            bad = str(error) or type(error).__name__
        said = {"windows": "1 s in 10 s", "on": "continuous", "off": "off"}[mode]
        text = f"kernel tracing: {bad}" if bad else f"kernel tracing: {said}"
        self.call_from_thread(self.notify, text, timeout=4, markup=False)

    def action_switch(self, what: str) -> None:
        """The page that changes the server: graphs, radix or actions."""
        if self._choices.readonly:
            self.notify("read-only: sgtop changes nothing on this server", severity="warning", timeout=4)
            return
        names = {"graphs": switches.GRAPHS, "radix": switches.RADIX}.get(what, ())
        ask = lambda op, args: self.source.command(None, op, args)  # noqa: E731  (a method would say no more)
        self.clear_notifications()  # they would cover what the page asks
        self.push_screen(ChangePage(names, ask, lambda: self._snapshot, self.line_styles))

    def _tell_flips(self, snapshot: Snapshot) -> None:
        """Say once of each flip what it did, when there is something to compare."""
        for flip in (f for g in snapshot.switches for f in g.flips):
            key = (flip.switch, flip.step)
            if flip.after.seconds >= TELL_AFTER_S and key not in self._told_flips:
                self._told_flips.add(key)
                self.notify(switches.summary(flip), timeout=10, markup=False)

    def action_rank(self, step: int) -> None:
        """The next rank; before the first and after the last stands `the worst`."""
        if self._look is None:
            return
        labels: list[str | None] = [None, *(rank.rank for rank in self._look.ranks)]
        at = labels.index(self._choices.rank) if self._choices.rank in labels else 0
        self._choose(rank=labels[(at + step) % len(labels)])

    def action_record(self) -> None:
        """Begin a recording, or end the one that runs."""
        self.run_worker(self._record, thread=True, group="record", exit_on_error=False)

    def _record(self) -> None:
        text, on = recordings.toggle(self._recorder, self._snapshot)
        self.call_from_thread(self.notify, text, timeout=6, markup=False)
        self.call_from_thread(self._choose, recording=on)

    def action_save(self) -> None:
        """Save the last minutes."""
        self.run_worker(self._save, thread=True, group="record", exit_on_error=False)

    def _save(self) -> None:
        text = recordings.save(self._recorder, self._snapshot)
        self.call_from_thread(self.notify, text, timeout=6, markup=False)

    def recording_stopped(self, why: str) -> None:
        """The recorder gave up (disk full); from any thread."""
        self.call_from_thread(self.notify, why, severity="warning", timeout=10, markup=False)
        self.call_from_thread(self._choose, recording=False)

    def action_copy(self) -> None:
        """The next step of the worst finding to the clipboard."""
        alert = next((a for a in self._look.alerts if a.active and a.next), None) if self._look else None
        if alert is None:
            self.notify("no finding with a next step", timeout=3)
            return
        self.copy_to_clipboard(alert.next)
        self.notify(f"copied: {alert.next}", timeout=4, markup=False)

    def action_where(self) -> None:
        """Where the rank's main thread is now."""
        rank = self._look.focus if self._look is not None else None
        if rank is None:
            return
        self.run_worker(lambda: self._where(rank), thread=True, exclusive=True, exit_on_error=False)

    def _where(self, rank: Rank) -> None:
        try:
            lines = pages.where_lines(self.source.command(rank.rank, "where", {}))
        except Exception as error:
            lines = [((str(getattr(error, "what", None) or error or type(error).__name__), "warn"),)]
        self.call_from_thread(self.push_screen, Page(f"{rank.rank}: main thread now", lines, self.line_styles))

    # --- filter -----------------------------------------------------------------------------------

    @property
    def _filter(self) -> Input:
        return self.screen_stack[0].query_one("#filter", Input)

    def action_filter(self) -> None:
        """Open the filter's line."""
        self._filter.can_focus = True
        self._filter.add_class("open")
        self._filter.focus()

    def _close_filter(self) -> None:
        self._filter.remove_class("open")
        self._filter.can_focus = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._choose(filter=event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, close its line."""
        self._close_filter()

    def _choose(self, **changes: Any) -> None:
        self._choices = replace(self._choices, **changes)
        self.redraw()

    # --- themes and palette -----------------------------------------------------------------------

    def set_palette(self, name: str) -> None:
        """Another theme."""
        self._palette = theme.PALETTES[name]
        self.theme = f"sgtop-{name}"
        self.redraw()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Everything that a key does, every panel and every theme, by name."""
        yield from palette_commands(self._runner, self.set_palette)
        yield SystemCommand("Screenshot", "save this screen as an SVG file", self.deliver_screenshot)

    def _runner(self, action: str) -> Callable[[], None]:
        def call() -> None:
            self.call_later(self.run_action, action)

        return call
