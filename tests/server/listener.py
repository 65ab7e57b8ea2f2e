"""The raw stream of one or more ranks, as sgtop's own reading side gets it, kept whole for comparison."""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sgtop_agent import wire
from sgtop_probes.attach import AttachOptions, open_rank
from sgtop_probes.client import Connection, ConnectionLost
from sgtop_probes.discovery import RankProcess


class Listener:
    """Attached to one rank; a thread reads, and keeps every frame."""

    def __init__(self, rank: RankProcess, *, ways: Sequence[str] = ("pending-call",), nvtx: bool = False) -> None:
        """Attach by one of ``ways`` and begin to read.

        Raises:
            AttachError: see ``open_rank``.
        """
        self.rank = rank
        self.said: list[str] = []
        options = AttachOptions(ways=tuple(ways), nvtx=nvtx)
        self.connection: Connection = open_rank(rank, options=options, on_event=self.said.append)
        self.lost: str | None = None
        self._frames: list[wire.Frame] = []
        self._arrived = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"listener {rank.label}")
        self._thread.start()

    @property
    def hello(self) -> wire.Frame:
        """The agent's hello."""
        return self.connection.hello

    def _read(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self.connection.fileno(), selectors.EVENT_READ)
                while not self._stop.is_set():
                    selector.select(0.05)
                    if frames := self.connection.receive():
                        with self._arrived:
                            self._frames += frames
                            self._arrived.notify_all()
        except ConnectionLost as e:
            with self._arrived:
                self.lost = str(e)
                self._arrived.notify_all()

    def frames(self, kind: str) -> list[wire.Frame]:
        """All frames of a kind so far."""
        with self._arrived:
            return [f for f in self._frames if f["k"] == kind]

    def rows(self, table: str) -> list[dict[str, int]]:
        """All rows of a table so far, in order."""
        out = []
        for frame in self.frames("ev"):
            if frame["e"] == table:
                columns = {name: np.frombuffer(raw, "<i8").tolist() for name, raw in frame["c"].items()}
                out += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return out

    def wait(self, what: Callable[[Listener], Any], timeout_s: float = 20.0) -> Any:
        """Wait until ``what`` gives something true; that.

        Raises:
            TimeoutError: it does not; AssertionError: the connection was lost meanwhile.
        """
        end = time.monotonic() + timeout_s
        while not (got := what(self)):
            if self.lost is not None:
                raise AssertionError(f"{self.rank.label}: {self.lost}")
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.rank.label}: not within {timeout_s:g} s; said so far: {self.said}")
            with self._arrived:
                self._arrived.wait(min(left, 0.25))
        return got

    def settled(self) -> int:
        """Wait until ``ct`` stands still from now on and every step up to it has arrived; that ``forward_ct``."""
        asked = time.monotonic_ns()

        def quiet(listener: Listener) -> int:
            stats = [s["ct"] for s in listener.frames("stat") if s["t"] > asked][-3:]
            steps = listener.rows("step")
            if len(stats) == 3 and len(set(stats)) == 1 and (not steps or steps[-1]["ct"] == stats[-1]):
                return int(stats[-1])
            return 0

        return int(self.wait(quiet))

    def close(self) -> None:
        """Detach."""
        self._stop.set()
        self._thread.join()
        self.connection.close()

    def __enter__(self) -> Listener:
        """Attached."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.close()
