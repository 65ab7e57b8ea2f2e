"""Signals as a flag, for commands that must take something back before they end; or as Ctrl-C, for the others."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SLICE_S = 0.05


@contextmanager
def as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, with KeyboardInterrupt; whatever comes after the first does
    not disturb the tidying up.
    """
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]

    def end(*_: Any) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    old = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Signals:
    """From ``hold`` on, Ctrl-C, SIGTERM and SIGHUP only set ``came``: to the end of the block, or of the process.

    An exception out of a signal handler can hit anywhere: in a lock that is just being taken (which then fails with
    words that say nothing), or in the very cleaning up that the signal before it began. And one that comes when
    everything is back must not change how the command ends.
    """

    def __init__(self) -> None:
        self.came = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        """Held from here on."""
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        """As before."""
        self.release()

    def hold(self) -> None:
        """From now on a signal only sets ``came``."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            self._old.setdefault(number, signal.signal(number, self._take))

    def release(self) -> None:
        """As before ``hold``: for a question, or where nothing is to be taken back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def ignore(self) -> None:
        """Everything is back: from now on a signal must not change how the process ends. A flag would not do, since
        Python takes its own handlers off before it ends.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _take(self, *_: Any) -> None:
        self.came = True

    def sleep(self, seconds: float) -> None:
        """Sleep, but not on after a signal."""
        end = time.monotonic() + seconds
        while not self.came and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_S))

    def check(self) -> None:
        """Break off, where there is nothing to take back.

        Raises:
            KeyboardInterrupt: a signal came.
        """
        if self.came:
            raise KeyboardInterrupt
