"""The terminal driver: Textual's own, but the screen is wiped before it is given back."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class Driver(LinuxDriver):
    """Leaves nothing behind.

    tmux (3.3a) that was resized while a program had the alternate screen brings that screen's lines back into the
    primary one afterwards, whatever the program was. Lines that are blank by then do no harm.
    """

    def stop_application_mode(self) -> None:
        """Wipe, then restore the terminal."""
        self.write("\x1b[2J\x1b[H")
        super().stop_application_mode()
