"""Reader of the ring that the helper in the server's process fills; ``agent/native/layout.h`` is what it maps.

The mapping is read-only and nobody is told that we read. A buffer is copied and its version looked at before and
after: odd or changed means that CUPTI has it again, and the buffer counts as lost. Between the two looks and the
first and last byte of the copy lie thousands of instructions and the interpreter's own barriers, so that the check
also holds on processors that reorder loads.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAGIC = 0x474E495247533153
ABI = 1
COUNTERS = (
    "head", "epoch", "on", "lent", "requested", "completed", "empty", "recycled", "late", "spilled", "spilled_bytes",
    "starved", "foreign", "flushes", "flush_errors", "last_error", "dropped", "records", "kernels", "untimed",
    "malformed", "unwalked", "clock_head",
)  # fmt: skip
"""Counters of the header in their order; agent/native/layout.h says what each counts."""
_COUNTERS_AT, _STRIDES_AT, _KINDS = 384, 128, 64
_HEAD = struct.Struct("<QIIIIQQQQII")
_SLOT = np.dtype([("version", "<u8"), ("order", "<u8"), ("valid", "<u8"), ("t_ns", "<u8"), ("epoch", "<u8"),
                  ("reserved", "<u8", 3)])  # fmt: skip
_CLOCK = np.dtype([("version", "<u8"), ("mono0", "<u8"), ("cupti", "<u8"), ("mono1", "<u8"), ("epoch", "<u8"),
                   ("reserved", "<u8", 3)])  # fmt: skip


class RingError(RuntimeError):
    """The descriptor is not a ring that this sgtop can read; the text says why."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer as CUPTI gave it back."""

    order: int
    epoch: int
    t_ns: int
    """CLOCK_MONOTONIC when CUPTI gave it back."""
    data: NDArray[np.uint8]
    """A copy of the records."""


@dataclass(frozen=True, slots=True)
class ClockSample:
    """CUPTI's clock between two readings of CLOCK_MONOTONIC."""

    mono0: int
    cupti: int
    mono1: int
    epoch: int


class RingReader:
    """One reader of one ring, from the running session's oldest buffer on that is still there.

    It is made when the descriptor has come, a moment after tracing was asked for; by then there may be buffers already.
    """

    def __init__(self, fd: int) -> None:
        """Map the ring; ``fd`` can be closed afterwards.

        Raises:
            RingError: it cannot be mapped, or is not a ring of this version.
        """
        try:
            size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as e:
            raise RingError(f"the kernel ring cannot be mapped: {e}")
        if size < 1024:
            raise RingError("the kernel ring is too short")
        head = _HEAD.unpack_from(self._map)
        magic, abi, _, slots, clocks, slot_bytes, slots_at, clocks_at, data_at, version, pid = head
        if magic != MAGIC or abi != ABI:
            raise RingError(f"not a kernel ring of version {ABI}")
        if data_at + slots * slot_bytes > size or slots_at + 64 * slots > data_at or clocks_at + 64 * clocks > data_at:
            raise RingError("the kernel ring's header does not fit its size")
        self.size, self.slots, self.slot_bytes, self.cupti_version, self.pid = size, slots, slot_bytes, version, pid
        raw = np.frombuffer(self._map, np.uint8)
        self._slots = raw[slots_at : slots_at + 64 * slots].view(_SLOT)
        self._clocks = raw[clocks_at : clocks_at + 64 * clocks].view(_CLOCK)
        self._counters = raw[_COUNTERS_AT : _COUNTERS_AT + 8 * len(COUNTERS)].view("<u8")
        self._data = raw[data_at : data_at + slots * slot_bytes].reshape(slots, slot_bytes)
        table = raw[_STRIDES_AT : _STRIDES_AT + 4 * _KINDS].view("<u4")
        self.strides = {k: int(n) for k, n in enumerate(table) if n}
        """Bytes of a record by kind."""
        self.next = self._first()
        """Order of the buffer that comes next."""
        self.lost = 0
        """Buffers that were overwritten before this reader had them."""
        self._waited_for = 0
        self._clock_next = max(0, int(self._counters[-1]) - clocks + 8)

    def _first(self) -> int:
        head, epoch, on = (int(x) for x in self._counters[:3])
        seen = self._slots.copy()
        mine = seen["order"][(seen["version"] % 2 == 0) & (seen["epoch"] == epoch) & (seen["order"] < head)]
        return int(mine.min()) if on and len(mine) else head

    def counters(self) -> dict[str, int]:
        """The helper's counters, by name; they count since the ring was made."""
        return {name: int(v) for name, v in zip(COUNTERS, self._counters, strict=True)}

    def clock_samples(self) -> list[ClockSample]:
        """Clock samples since the last call, oldest first."""
        head = int(self._counters[-1])
        n = len(self._clocks)
        self._clock_next = max(self._clock_next, head - n + 8)
        out = []
        for i in range(self._clock_next, head):
            row = self._clocks[i % n].copy()
            if int(row["version"]) == 2 * i + 2 == int(self._clocks[i % n]["version"]):
                out.append(ClockSample(int(row["mono0"]), int(row["cupti"]), int(row["mono1"]), int(row["epoch"])))
        self._clock_next = head
        return out

    def poll(self, max_buffers: int = 1 << 30, *, between: Callable[[], None] | None = None) -> list[Buffer]:
        """Buffers published since the last call, oldest first, at most ``max_buffers``.

        What was overwritten in between is added to ``lost``. ``between`` is called between copying a buffer and
        looking at its version again: a test's way to be slow at the worst moment.
        """
        head = int(self._counters[0])
        if head <= self.next:
            return []
        seen = self._slots.copy()
        order = seen["order"].astype(np.int64)
        ready = np.flatnonzero((seen["version"] % 2 == 0) & (order >= self.next) & (order < head))
        out: list[Buffer] = []
        for i in ready[np.argsort(order[ready])]:
            if len(out) >= max_buffers:
                head = int(order[i])
                break
            row = seen[i]
            data = self._data[i, : min(int(row["valid"]), self.slot_bytes)].copy()
            if between is not None:
                between()
            if self._slots[i]["version"] != row["version"]:
                continue
            out.append(Buffer(int(row["order"]), int(row["epoch"]), int(row["t_ns"]), data))
        # The helper gives out an order before it publishes the slot. A hole among the youngest buffers may be just
        # that: stop there once. A hole that is still there the next time, or an older one, was overwritten.
        got = {b.order for b in out}
        young = max(self.next, head - max(1, self.slots // 8), self._waited_for)
        holes = [o for o in range(young, head) if o not in got]
        stop = head
        if holes:
            stop, self._waited_for = holes[0], head
            out = [b for b in out if b.order < stop]
        self.lost += (stop - self.next) - len(out)
        self.next = stop
        return out

    def close(self) -> None:
        """Unmap. The arrays handed out are copies and stay."""
        del self._slots, self._clocks, self._counters, self._data
        self._map.close()
