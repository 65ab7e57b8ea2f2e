"""``torch.cuda`` as far as the agent uses it: streams that run in order at the speed of a simulated clock."""

from __future__ import annotations

from typing import Any


class Gpu:
    """One device. ``now`` is CLOCK_MONOTONIC ns of the simulation; ``launch`` queues work on a stream."""

    def __init__(self, launch_ns: int = 3_000) -> None:
        self.now = 10_000_000
        self.launch_ns = launch_ns
        self.capturing = False
        self.room_ns = 0
        """How long the next record waits for room in the launch queue."""
        self.events = 0
        self.synchronised = 0
        self.main = Stream(self, 1)
        self._streams = 1

    def clock(self) -> int:
        """Every look at the clock takes a little."""
        self.now += 50
        return self.now

    # --- torch.cuda ------------------------------------------------------------------------------

    def Event(self, enable_timing: bool = False) -> Event:  # noqa: N802 - torch's name
        assert enable_timing
        self.events += 1
        return Event(self)

    def Stream(self, priority: int = 0) -> Stream:  # noqa: N802 - torch's name
        self._streams += 1
        return Stream(self, self._streams)

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        self.synchronised += 1


class Stream:
    def __init__(self, gpu: Gpu, handle: int) -> None:
        self.gpu, self.cuda_stream = gpu, handle
        self.free_at = 0

    def launch(self, ns: int) -> tuple[int, int]:
        """Queue a kernel; (start, end)."""
        start = max(self.free_at, self.gpu.now + self.gpu.launch_ns)
        self.free_at = start + ns
        return start, self.free_at


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at: int | None = None

    def record(self, stream: Any = None) -> None:
        assert not self._gpu.capturing, "an event was recorded during a capture"
        stream = stream if stream is not None else self._gpu.main
        self._gpu.now += 700 + self._gpu.room_ns
        self._gpu.room_ns = 0
        self.at = max(stream.free_at, self._gpu.now + self._gpu.launch_ns)

    def query(self) -> bool:
        assert not self._gpu.capturing, "a query during a capture breaks it"
        self._gpu.now += 300
        return self.at is not None and self._gpu.now >= self.at

    def synchronize(self) -> None:
        self._gpu.synchronised += 1

    def elapsed_time(self, other: Event) -> float:
        assert self.at is not None
        assert other.at is not None
        assert self.query()
        assert other.query()
        return (other.at - self.at) / 1e6
