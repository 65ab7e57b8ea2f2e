"""From a buffer of CUPTI records to columns, vectorised, also where kinds are mixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import KERNEL, KERNEL_FIELDS, MEMCPY, MEMORY_FIELDS, dtypes

_RUN = 512
"""Records looked at in one numpy call; a step of a model has some hundreds of kernels between two copies."""
_SHORT = 8

# Offsets of fields in 8-byte and 4-byte units. Strides are multiples of 8, so fields stay aligned; start and end are at
# the same place in all three kinds.
_START, _END = KERNEL_FIELDS["start"][1] // 8, KERNEL_FIELDS["end"][1] // 8
_NAME, _BYTES = KERNEL_FIELDS["name"][1] // 8, MEMORY_FIELDS["bytes"][1] // 8
_KERNEL_STREAM, _KERNEL_GRAPH = KERNEL_FIELDS["stream"][1] // 4, KERNEL_FIELDS["graph"][1] // 4
_MEMORY_STREAM, _MEMORY_GRAPH = MEMORY_FIELDS["stream"][1] // 4, MEMORY_FIELDS["graph"][1] // 4
_COPY = MEMORY_FIELDS["copy"][1]


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of one buffer's good records; all arrays have the same length.

    ``start`` and ``end`` are CUPTI ticks. ``name`` is the address of the kernel's name in the server's process; for
    a copy or a set it is ``-(kind << 8 | copy kind)``, which no address is.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    stream: NDArray[np.int64]
    graph: NDArray[np.int64]
    """CUDA graph id, 0: launched by itself."""
    bytes: NDArray[np.int64]
    """Of a copy or set; 0 for a kernel."""
    untimed: int
    """Records that were dropped since they have no timestamps."""
    malformed: bool
    """The buffer ended in something that is no record of the three kinds; what came before is kept."""

    def __len__(self) -> int:
        return len(self.start)


class Parser:
    """Parses buffers of one CUPTI version."""

    def __init__(self, strides: dict[int, int]) -> None:
        """``strides``: bytes of a record by kind, from the ring's header.

        Raises:
            LayoutError: strides that cannot be.
        """
        self._words = {kind: t.itemsize // 4 for kind, t in dtypes(strides).items()}

    def _positions(self, words: NDArray[np.uint32]) -> tuple[dict[int, list[NDArray[np.int64]]], bool]:
        """Where records of each kind begin, in 4-byte words, and whether the walk broke off.

        The chain is exact: each record's kind gives where the next begins. Long runs of one kind are taken with one
        numpy comparison, short ones step by step.
        """
        at, n = 0, len(words)
        found: dict[int, list[NDArray[np.int64]]] = {kind: [] for kind in self._words}
        step = self._words
        view = memoryview(words)  # type: ignore[arg-type]
        singles: dict[int, list[int]] = {kind: [] for kind in self._words}
        careful = 0
        while at < n:
            kind = view[at]
            w = step.get(kind, 0)
            if not w or at + w > n:
                return self._merge(found, singles), True
            if careful:
                careful -= 1
                singles[kind].append(at)
                at += w
                continue
            kinds = words[at : min(n, at + w * _RUN) : w]
            other = kinds != kind
            run = int(other.argmax()) if other.any() else len(kinds)
            run = min(run, (n - at) // w)
            found[kind].append(np.arange(at, at + run * w, w))
            at += run * w
            if run < _SHORT:
                careful = 64
        return self._merge(found, singles), False

    @staticmethod
    def _merge(
        found: dict[int, list[NDArray[np.int64]]], singles: dict[int, list[int]]
    ) -> dict[int, list[NDArray[np.int64]]]:
        for kind, positions in singles.items():
            if positions:
                found[kind].append(np.array(positions, dtype=np.int64))
        return found

    def parse(self, data: NDArray[np.uint8]) -> Records:
        """Columns of the records in ``data`` (the bytes of one buffer), each kind in the buffer's order."""
        usable = len(data) // 8 * 8
        raw = np.ascontiguousarray(data[:usable])
        words, longs = raw.view("<u4"), raw.view("<i8")
        w = self._words[KERNEL]
        malformed = len(data) != usable
        parts: list[tuple[int, NDArray[np.int64]]]
        if usable and len(words) % w == 0 and bool((words[::w] == KERNEL).all()):
            parts = [(KERNEL, np.arange(0, len(words), w))]  # one kind: no walk
        else:
            positions, broke = self._positions(words)
            malformed = malformed or broke
            parts = [(k, p[0] if len(p) == 1 else np.concatenate(p)) for k, p in positions.items() if p]
        columns: list[tuple[NDArray[np.int64], ...]] = []
        untimed = 0
        for kind, at in parts:
            start, end = longs[(at >> 1) + _START], longs[(at >> 1) + _END]
            good = (start > 0) & (end >= start)
            if not good.all():
                untimed += len(at) - int(np.count_nonzero(good))
                at, start, end = at[good], start[good], end[good]
            if kind == KERNEL:
                name, nbytes = longs[(at >> 1) + _NAME], np.zeros(len(at), np.int64)
                stream, graph = words[at + _KERNEL_STREAM], words[at + _KERNEL_GRAPH]
            else:
                copy = raw[4 * at + _COPY].astype(np.int64) if kind == MEMCPY else np.zeros(len(at), np.int64)
                name, nbytes = -(np.int64(kind << 8) | copy), longs[(at >> 1) + _BYTES]
                stream, graph = words[at + _MEMORY_STREAM], words[at + _MEMORY_GRAPH]
            columns.append((start, end, name, stream.astype(np.int64), graph.astype(np.int64), nbytes))
        if len(columns) == 1:
            start, end, name, stream, graph, nbytes = columns[0]
        elif columns:
            start, end, name, stream, graph, nbytes = (np.concatenate(c) for c in zip(*columns, strict=True))
        else:
            start = end = name = stream = graph = nbytes = np.empty(0, np.int64)
        return Records(start, end, name, stream, graph, nbytes, untimed, malformed)
