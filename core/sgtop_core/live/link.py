"""One rank's attachment: attached on a thread of its own, so that a rank that hangs holds nobody up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from sgtop_probes.discovery import RankProcess
from sgtop_probes.errors import AttachError

from sgtop_core.live.backend import Backend, Connection

RETRY_S = {"starting": 1.0, "hung": 5.0, "traced": 2.0, "gone": 1.0, "failed": 10.0, "foreign": 30.0}
"""Kind of a failed attach → seconds to the next try. What is not here is not tried again: nothing will have changed."""

_STATUS = {"starting": "starting", "hung": "hung", "traced": "connecting", "gone": "lost"}
"""Kind → state of the rank; everything else goes on without the agent."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attach that did not work."""

    kind: str
    text: str
    mend: str

    @property
    def status(self) -> str:
        """State of the rank now."""
        return _STATUS.get(self.kind, "agentless")

    @property
    def message(self) -> str:
        """In words, with what mends it."""
        return f"{self.text} → {self.mend}" if self.mend else self.text


class Link:
    """The way to one rank. ``poll`` is called by the session's thread only."""

    def __init__(self, rank: RankProcess, backend: Backend, nvtx: bool, wake: Callable[[], None]) -> None:
        self.rank = rank
        self.connection: Connection | None = None
        self.failure: Failure | None = None
        self.attempts = 0
        self._backend, self._nvtx, self._wake = backend, nvtx, wake
        self._lock = threading.Lock()
        self._arrived: Connection | Failure | None = None
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._dead = False
        self.events: list[str] = []
        """Lines about the rungs that were tried, for the log."""

    @property
    def busy(self) -> bool:
        """An attach is under way."""
        return self._thread is not None

    def poll(self, now_s: float) -> Connection | Failure | None:
        """Start an attach when it is time; hand over what one has brought, once."""
        with self._lock:
            got, self._arrived = self._arrived, None
        if got is not None:
            self._thread = None
            if isinstance(got, Failure):
                self.failure = got
                wait = RETRY_S.get(got.kind)
                self._next_s = now_s + wait if wait is not None else float("inf")
            else:
                self.connection, self.failure = got, None
            return got
        if self.connection is None and self._thread is None and now_s >= self._next_s:
            self.attempts += 1
            self._thread = threading.Thread(target=self._attach, name=f"sgtop-attach-{self.rank.label}", daemon=True)
            self._thread.start()
        return None

    def _attach(self) -> None:
        result: Connection | Failure
        try:
            result = self._backend.open_rank(self.rank, self._nvtx, self.events.append)
        except AttachError as e:
            result = Failure(e.kind, str(e), e.mend)
        except Exception as e:  # a mistake of ours must leave a rank without agent, not a thread without end
            result = Failure("failed", f"attach failed: {type(e).__name__}: {e}", "SGTOP_DEBUG=1 shows the trace")
        with self._lock:
            if not self._dead:
                self._arrived = result
                self._wake()
                return
        if not isinstance(result, Failure):
            result.close()

    def lost(self, now_s: float) -> None:
        """The connection has gone; try again in a moment."""
        self._close()
        self._next_s = now_s + 0.5

    def close(self) -> None:
        """Give the connection up, now or when it arrives."""
        with self._lock:
            self._dead = True
            got, self._arrived = self._arrived, None
        if got is not None and not isinstance(got, Failure):
            got.close()
        self._close()

    def _close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
