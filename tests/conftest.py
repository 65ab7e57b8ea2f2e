"""What all tests share."""

from __future__ import annotations

import signal

# Started with nohup, or by a CI that ignores hang-ups, every process below this one would ignore them too, and what a
# closed terminal does to sgtop, the demo and a server's keeper could not be tested.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Begun with & in a script, the same goes for Ctrl-C, by which tests end what they start as a person would.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
