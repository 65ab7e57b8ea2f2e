"""Attach and detach, again and again."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence

from sgtop_probes.attach import AttachOptions, open_rank
from sgtop_probes.discovery import RankProcess

from tests.server.traces import wait_without_agent


def cycle(ranks: Sequence[RankProcess], *, events: bool = True, gone_s: float = 15.0) -> None:
    """Attach to every rank by pending call, see some events (there must be traffic), detach, see the agents gone.

    Raises:
        AttachError: no way in; TimeoutError: no events, or an agent stays.
    """
    connections = [open_rank(rank, options=AttachOptions(ways=("pending-call",))) for rank in ranks]
    try:
        for connection in connections if events else ():
            end = time.monotonic() + 10
            with selectors.DefaultSelector() as selector:
                selector.register(connection.fileno(), selectors.EVENT_READ)
                while not any(frame["k"] == "ev" and frame["e"] == "step" for frame in connection.receive()):
                    if time.monotonic() > end:
                        raise TimeoutError("attached, but no step within 10 s")
                    selector.select(0.1)
    finally:
        for connection in connections:
            connection.close()
    for rank in ranks:
        assert rank.pid is not None
        wait_without_agent(rank.pid, gone_s)  # a time-out, not a measurement: the machine may be busy
