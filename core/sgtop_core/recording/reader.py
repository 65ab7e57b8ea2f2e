"""Reading a recording: its entries in order, whole or from a moment on, whatever happened to the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from . import chunk, container
from .chunk import Decoded, Entry
from .errors import DamagedChunk, RecordingError


class Recording:
    """An open recording. Iterate it for its entries; damage is skipped and counted, never raised.

    Raises:
        RecordingError: not a recording, one of a newer sgtop, or one without a single sound second.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO) -> None:
        self._path = source if isinstance(source, (str, os.PathLike)) else None
        if isinstance(source, (str, os.PathLike)):
            self.name = str(source)
            try:
                self._file: BinaryIO = Path(source).open("rb")  # noqa: SIM115 (close() is ours)
            except OSError as e:
                raise RecordingError(f"{self.name} cannot be read", e.strerror or str(e)) from e
        else:
            self.name = getattr(source, "name", "the recording")
            self._file = source
        try:
            self._size = self._file.seek(0, os.SEEK_END)
            container.check_head(self._file, self.name)
            self.meta: dict[str, Any] = container.read_meta(self._file, self._size)
            index = container.read_index(self._file, self._size)
            self.complete = index is not None
            """The recorder ended it; else it was broken off (killed, disk full) or is still being written."""
            self._missing = 0
            self._unread: set[int] = set()
            self._after_damage: frozenset[int] = frozenset()
            """Chunks before which others are missing, where no index says so."""
            if index is not None:
                self.chunks = index
            else:
                self.chunks, damage = container.scan(self._file, self._size)
                self._missing, self._after_damage = len(damage), frozenset(damage)
        except BaseException:
            self.close()
            raise
        if not self.chunks:
            self.close()
            raise RecordingError(f"{self.name} holds no data", "it ends before its first second was written")

    @property
    def damage(self) -> int:
        """Stretches that could not be read, so far; however often they were tried."""
        return self._missing + len(self._unread)

    @property
    def start_ns(self) -> int:
        """CLOCK_MONOTONIC of the first entry, on the recorded host."""
        return self.chunks[0].first_ns

    @property
    def end_ns(self) -> int:
        """CLOCK_MONOTONIC of the last entry."""
        return max(c.last_ns for c in self.chunks)

    @property
    def seconds(self) -> float:
        """Length of the recording."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        """All entries, in the order in which the session took them in."""
        return self.entries()

    def entries(self, from_ns: int | None = None) -> Iterator[Entry]:
        """Entries from the chunk that holds ``from_ns`` on; what a reader must know first (hellos) comes first.

        After a damaged chunk it comes again, as the damage may have held some of it.
        """
        first = 0
        if from_ns is not None:
            first = max((i for i, c in enumerate(self.chunks) if c.first_ns <= from_ns), default=0)
        want_sticky = True
        for i in range(first, len(self.chunks)):
            try:
                found = self._chunk(i)
            except DamagedChunk:
                self._unread.add(i)
                want_sticky = True
                continue
            if want_sticky or i in self._after_damage:
                sticky = found.sticky or (self._sticky_before(i) if i > 0 else [])
                # at the time of this chunk: what is counted begins here, not where the hello was heard
                begin = self.chunks[i].first_ns
                for e in (*sticky, *(e for e in found.told if slot(e) is None)):
                    yield e._replace(mono_ns=max(e.mono_ns, begin))
                want_sticky = False
            yield from found.entries

    def stretches(self) -> list[range]:
        """Chunks that follow one another without damage between them."""
        out: list[range] = []
        begin = 0
        for i, c in enumerate(self.chunks):
            if i in self._after_damage or container.read_chunk(self._file, c.offset, self._size) is None:
                out.append(range(begin, i))
                begin = i if i in self._after_damage else i + 1
        return [s for s in (*out, range(begin, len(self.chunks))) if s]

    def chunk_entries(self, i: int) -> list[Entry]:
        """The entries of one chunk; none where it is damaged."""
        try:
            return self._chunk(i).entries
        except DamagedChunk:
            return []

    def _chunk(self, i: int) -> Decoded:
        ref = self.chunks[i]
        found = container.read_chunk(self._file, ref.offset, self._size)
        if found is None or found[0].kind != container.ENTRIES:
            raise DamagedChunk("a chunk of the recording is damaged", "its checksum does not fit")
        return chunk.decode(found[1])

    def _sticky_before(self, i: int) -> list[Entry]:
        """What was sticky when chunk ``i`` began: the latest list before it, brought up to date.

        A chunk that is damaged on the way is made up for by what the next one says that it told.
        """
        parts: list[list[Entry]] = []
        for j in range(i, -1, -1):
            try:
                found = self._chunk(j)
            except DamagedChunk:
                continue
            parts.append([*found.sticky, *found.told, *(found.entries if j < i else ())])
            if found.sticky:
                break
        keep = Sticky()
        for part in reversed(parts):
            for e in part:
                keep.see(e)
        return keep.entries()

    def reopen(self) -> Recording:
        """The same recording once more, with a position of its own."""
        if self._path is not None:
            return Recording(self._path)
        self._file.seek(0)
        return Recording(BytesIO(self._file.read()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Recording:
        """The recording itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        """Close the file."""
        self.close()


def damaged(n: int) -> str:
    """``1 damaged part``, ``2 damaged parts``."""
    return f"{n} damaged part{'' if n == 1 else 's'}"


STICKY_KINDS = frozenset({"hello"})
STICKY_PROBES = frozenset({"HostFacts"})
"""Frame kinds, and probes' classes, whose latest of each source a reader must know; also any frame with a ``sticky``
field (its slot)."""


def slot(entry: Entry) -> str | None:
    """What of its source ``entry`` sets until another sets it; None for what is of its moment only."""
    kind, what = entry.frame.get("k"), entry.frame.get("e")
    found = kind if kind in STICKY_KINDS else what if what in STICKY_PROBES else entry.frame.get("sticky")
    return found if isinstance(found, str) else None


def only_told(before: Iterable[Entry], now: Iterable[Entry]) -> list[Entry]:
    """What a reader who lost the entries ``before`` misses for longer than that, where ``now`` follows them.

    Sticky entries that are not set anew, and the agents' replies that name kernels: each name comes once.
    """
    old, new = Sticky(), Sticky()
    names: list[Entry] = []
    for e in before:
        old.see(e)
        result = e.frame.get("result") if e.frame.get("k") == "reply" else None
        if isinstance(result, Mapping) and result.get("names"):
            names.append(e)
    for e in now:
        new.see(e)
    return [*old.entries(new), *names]


class Sticky:
    """Keeps the latest sticky entry of each source and slot."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], Entry] = {}

    def see(self, entry: Entry) -> None:
        """Keep ``entry`` if it is sticky."""
        name = slot(entry)
        if name is not None:
            self._latest.pop((entry.source, name), None)  # so that the order stays the order of arrival
            self._latest[entry.source, name] = entry

    def entries(self, but: Sticky | None = None) -> list[Entry]:
        """The latest of each, in the order of arrival, without what ``but`` has too."""
        return [e for key, e in self._latest.items() if but is None or key not in but._latest]
