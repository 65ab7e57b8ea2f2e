"""The recorder: takes what the session takes in, on its own thread, into a file and a ring of the last minutes."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgtop_agent import wire

from . import chunk
from .chunk import Entry
from .errors import RecordingError
from .quantise import quantise
from .reader import Sticky, only_told
from .writer import FileWriter

CHUNK_S = 0.8
"""A chunk's length. Under a second with the time to pack it, so that a crash costs at most the last second."""
QUEUE_BYTES = 64 * 1024 * 1024
"""Frames that may wait for the recorder's thread; more are dropped and counted."""
STICKY_EVERY = 32
"""Chunks between two that carry all that is sticky again, so that a seek reads few; the first two of a file do too."""
FIRST_TWO = (0, 1)
"""Chunks of a file that must hold all that is sticky: either may be the damaged one."""
SOURCE = "recorder"
"""Source of the recorder's own entries: ``lost`` (field n), where frames did not fit its queue."""
_PLAIN_BYTES = 512
"""What a frame without columns is taken to weigh in the queue."""


@dataclass(frozen=True, slots=True)
class RecorderState:
    """What a screen shows of the recorder."""

    path: str | None
    """The file being written; None when only the ring runs."""
    seconds: float
    bytes: int
    ring_seconds: float
    ring_bytes: int
    lost: int
    """Frames that did not fit the queue."""
    error: str = ""
    """In words, why the file ended before it was asked to."""


@dataclass(slots=True)
class _Packed:
    body: bytes
    first_ns: int
    last_ns: int
    entries: int
    sticky: tuple[Entry, ...]
    """What was sticky when this chunk began."""


class Recorder:
    """``tap`` it from the session's thread; it never blocks, raises or grows without bound there.

    Args:
        ring_s: seconds of the past to keep in memory for :meth:`save`; 0 keeps none.
        meta: what a recording says of itself (server, host, versions); a function, as it is known only when attached.
        on_line: called on the recorder's thread with a line worth showing (the disk is full).
        clock: CLOCK_MONOTONIC ns.
    """

    def __init__(
        self,
        *,
        ring_s: float = 0.0,
        meta: Callable[[], dict[str, Any]] = dict,
        on_line: Callable[[str], None] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._ring_ns = int(ring_s * 1e9)
        self._meta = meta
        self._on_line = on_line
        self._clock = clock
        self._queue: deque[Entry] = deque()
        self._room = QUEUE_BYTES
        self._lost = self._lost_told = 0
        self._lock = threading.Lock()  # guards the queue's count only: held for a few instructions
        self._work = threading.RLock()  # guards file and ring: taken by the recorder's thread and by start/stop/save
        self._ring: deque[_Packed] = deque()
        self._ring_bytes = 0
        self._sticky = Sticky()
        self._since_sticky = 0
        self._before: list[Entry] = []
        """What the chunk before told that outlasts it."""
        self._file: FileWriter | None = None
        self._started_ns = 0
        self._error = ""
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sgtop-recorder", daemon=True)
        self._thread.start()

    def tap(self, source: str, frame: wire.Frame, mono_ns: int) -> None:
        """Take one frame, as it goes to the model. Microseconds; safe from any thread."""
        if "token" in frame:
            frame = {**frame, "token": ""}  # a recording is passed on; the key to a running agent must not be in it
        cols = frame.get("c")
        n = frame.get("n")
        weight = 8 * n * len(cols) if isinstance(n, int) and isinstance(cols, dict) else _PLAIN_BYTES
        with self._lock:
            if weight > self._room:
                self._lost += 1
                return
            self._room -= weight
            self._queue.append(Entry(source, frame, mono_ns))

    def start(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Record to ``path`` from now on.

        Raises:
            RecordingError: it cannot be made, or a recording is running.
        """
        with self._work:
            if self._file is not None:
                raise RecordingError(f"a recording runs already: {self._file.path}")
            self._pack()  # what came before belongs to the ring only
            self._file = FileWriter(path, self._meta(), overwrite=overwrite)
            self._error, self._since_sticky, self._started_ns = "", 0, self._clock()

    def stop(self) -> str | None:
        """End the file; its path, or None where none was written."""
        with self._work:
            self._pack()
            file, self._file = self._file, None
            if file is None:
                return None
            file.close()
            return str(file.path)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> str:
        """Write the ring, up to this moment, to ``path``; it goes on.

        Raises:
            RecordingError: no ring, an empty one, or a file that cannot be written.
        """
        with self._work:
            self._pack()
            if not self._ring:
                raise RecordingError(
                    "there is nothing to save yet", "" if self._ring_ns else "the ring is off (--ring 0)"
                )
            kept = list(self._ring)
        file = FileWriter(path, self._meta(), overwrite=overwrite)
        for i, p in enumerate(kept):
            body = p.body
            if i in FIRST_TWO:  # they must tell what was known before them: packed anew with it
                found = chunk.decode(body)
                body = chunk.encode(found.entries, p.sticky, found.told)
            file.add(body, p.first_ns, p.last_ns, p.entries)
        file.close()
        return str(file.path)

    def state(self) -> RecorderState:
        """Now; cheap enough for every snapshot."""
        file, ring = self._file, self._ring
        try:
            ring_s = (ring[-1].last_ns - ring[0].first_ns) / 1e9
        except IndexError:
            ring_s = 0.0
        return RecorderState(
            path=str(file.path) if file else None,
            seconds=(self._clock() - self._started_ns) / 1e9 if file else 0.0,
            bytes=file.size if file else 0,
            ring_seconds=ring_s,
            ring_bytes=self._ring_bytes,
            lost=self._lost,
            error=self._error,
        )

    def close(self) -> None:
        """End everything; the file, if any, is complete after it."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=10)
        self.stop()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(CHUNK_S)
            with self._work:
                self._pack()

    def _pack(self) -> None:
        """Turn what waits into a chunk for the file and the ring. ``_work`` is held."""
        with self._lock:
            entries, self._queue = self._queue, deque()
            self._room = QUEUE_BYTES
        if not entries:
            return
        if self._lost > self._lost_told:
            entries.append(Entry(SOURCE, {"k": "lost", "n": self._lost - self._lost_told}, entries[-1].mono_ns))
            self._lost_told = self._lost
        known = tuple(self._sticky.entries())
        for e in entries:
            self._sticky.see(e)
        if self._file is None and not self._ring_ns:
            self._before = []
            return
        told = only_told(self._before, entries)
        self._before = only_told(entries, ())
        times = [e.mono_ns for e in entries]  # a probe stamps its events itself: they may be a little older
        first, last = min(times), max(times)
        carries = self._since_sticky % STICKY_EVERY == 0 or self._since_sticky in FIRST_TWO
        carry = known if self._file is not None and carries else ()
        self._since_sticky += 1
        body = chunk.encode([Entry(e.source, quantise(e.frame), e.mono_ns) for e in entries], carry, told)
        if self._file is not None:
            try:
                self._file.add(body, first, last, len(entries))
            except RecordingError as e:
                self._fail(e)
        if self._ring_ns:
            self._ring.append(_Packed(body, first, last, len(entries), known))
            self._ring_bytes += len(body)
            while len(self._ring) > 1 and last - self._ring[0].last_ns > self._ring_ns:
                self._ring_bytes -= len(self._ring.popleft().body)

    def _fail(self, e: RecordingError) -> None:
        """The file ends here; the session goes on."""
        self._file = None
        self._error = f"{e.what}: {e.why}" if e.why else e.what
        if self._on_line is not None:
            self._on_line(self._error)
