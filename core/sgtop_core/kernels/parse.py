"""From a buffer of CUPTI records to columns, vectorised, also where kinds are mixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .layout import KERNEL, MEMCPY, dtypes

_RUN = 512
"""Records looked at in one numpy call; a step of a model has some hundreds of kernels between two copies."""
_SHORT = 8


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
        self._types = dtypes(strides)
        self._words = {kind: t.itemsize // 4 for kind, t in self._types.items()}

    def _positions(self, words: NDArray[np.uint32]) -> tuple[dict[int, list[NDArray[np.int64]]], bool]:
        """Where records of each kind begin, in 4-byte words, and whether the walk broke off.

        The chain is exact: each record's kind gives where the next begins. Long runs of one kind are taken with one
        numpy comparison, short ones step by step.
        """
        at, n = 0, len(words)
        found: dict[int, list[NDArray[np.int64]]] = {kind: [] for kind in self._types}
        step = self._words
        view = memoryview(words)  # type: ignore[arg-type]
        singles: dict[int, list[int]] = {kind: [] for kind in self._types}
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
        """Columns of the records in ``data`` (the bytes of one buffer), kernels first, each kind in buffer order."""
        usable = len(data) // 4 * 4
        words = data[:usable].view("<u4")
        kernel = self._types[KERNEL]
        malformed = False
        if usable and usable % kernel.itemsize == 0 and bool((words[:: self._words[KERNEL]] == KERNEL).all()):
            parts = [(KERNEL, data.view(kernel))]  # the common case: one kind
        else:
            positions, malformed = self._positions(words)
            parts = []
            for kind, where in positions.items():
                if where:
                    parts.append((kind, self._take(data, kind, np.concatenate(where) * 4)))
        columns: dict[str, list[NDArray[np.int64]]] = {
            k: [] for k in ("start", "end", "name", "stream", "graph", "bytes")
        }
        untimed = 0
        for kind, rows in parts:
            start, end = rows["start"].astype(np.int64), rows["end"].astype(np.int64)
            good = (start > 0) & (end >= start)
            n_good = int(np.count_nonzero(good))
            untimed += len(rows) - n_good
            if n_good < len(rows):
                rows, start, end = rows[good], start[good], end[good]
            columns["start"].append(start)
            columns["end"].append(end)
            columns["stream"].append(rows["stream"].astype(np.int64))
            columns["graph"].append(rows["graph"].astype(np.int64))
            if kind == KERNEL:
                columns["name"].append(rows["name"].astype(np.int64))
                columns["bytes"].append(np.zeros(n_good, np.int64))
            else:
                copy = rows["copy"].astype(np.int64) if kind == MEMCPY else np.zeros(n_good, np.int64)
                columns["name"].append(-(np.int64(kind << 8) | copy))
                columns["bytes"].append(rows["bytes"].astype(np.int64))
        joined = {k: np.concatenate(v) if v else np.empty(0, np.int64) for k, v in columns.items()}
        return Records(**joined, untimed=untimed, malformed=malformed)

    def _take(self, data: NDArray[np.uint8], kind: int, at: NDArray[np.int64]) -> NDArray[np.void]:
        """Records of ``kind`` at byte offsets ``at``."""
        size = self._types[kind].itemsize
        if len(at) > 1 and bool((np.diff(at) == size).all()):
            return data[at[0] : at[-1] + size].view(self._types[kind])
        windows = np.lib.stride_tricks.sliding_window_view(data, size)
        return np.ascontiguousarray(windows[at]).view(self._types[kind])[:, 0]
