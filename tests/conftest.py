"""What all tests share."""

from __future__ import annotations

import signal

# Started with nohup, or by a CI that ignores hang-ups, every process below this one would ignore them too, and what a
# closed terminal does to sgtop, the demo and a server's keeper could not be tested.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
