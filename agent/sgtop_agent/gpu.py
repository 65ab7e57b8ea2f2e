"""GPU time of forwards: a ring of reused CUDA events, polled, never synchronised.

A forward gets three events on its stream: start (as late as the version allows: an event before ``forward``
fires at once on an idle stream, so loading the batch would count as GPU time), end of the forward, end of
sampling. Everything here runs on the scheduler's main thread, because only that thread knows that no graph
is being captured: a query from another thread would break a capture.

Event times become CLOCK_MONOTONIC by an *anchor*: an event on a stream of its own, recorded and polled for a
few microseconds between two readings of the clock. Of several tries the tightest counts. ``elapsed_time`` is
a float32 of milliseconds, so a new anchor is made every few seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

RING = 256
"""Forwards whose events may be pending."""
POLL_MOST = 4
"""Forwards finished in one poll, so that a burst does not cost one step everything."""
POLL_AT, POLL_AFTER_NS = 5, 30_000_000
"""A step polls when so many forwards wait, two of which are usually under way, or one for so long. Measured in a
scheduler on an H200: a query takes 7 µs and the times of one forward 24 µs, because caches are cold by then (in a loop
that does nothing else, records, query and times are 13 µs together). Three at a time pay for that once."""
REANCHOR_NS = 3_000_000_000
ANCHOR_TRIES = 8
ANCHOR_GOOD_NS = 15_000
ANCHOR_POLLS = 24
ANCHOR_SPIN_NS = 40_000
ROOM_NS = 100_000
"""A record takes a few µs. One that takes longer waited for room in the launch queue, as what SGLang launches next
would have done in its place (prefills on an H200: 3.5 ms, one attention kernel): no cost of ours."""

Row = tuple[int, ...]
Emit = Callable[[Row, int, int, int], None]
"""(row, gpu0, gpu1, gpu2) in CLOCK_MONOTONIC ns, -1 where there is none."""


class Slot:
    """The events of one forward."""

    __slots__ = ("at", "end", "has_end2", "has_start", "end2", "held", "row", "start")  # noqa: RUF023 - in order of time

    def __init__(self, event: Callable[[], Any]) -> None:
        self.start, self.end, self.end2 = event(), event(), event()
        self.row: Row = ()
        self.at = 0
        """When the forward returned."""
        self.has_start = self.has_end2 = self.held = False


class GpuTimer:
    """See the module. ``cuda`` is ``torch.cuda``; ``stream`` is where forwards run, None for "the current one".

    ``entry_start``: no later point is hooked, so the start event is recorded at the entry of the forward.
    """

    def __init__(self, cuda: Any, clock: Callable[[], int], emit: Emit, stream: Any, entry_start: bool) -> None:
        self._cuda, self._clock, self._emit, self._stream = cuda, clock, emit, stream
        self._capturing = cuda.is_current_stream_capturing
        self.entry_start = entry_start
        self.on = True
        self.why_off = ""
        self.lost = 0
        self.current: Slot | None = None
        """The forward that runs; ``late`` moves its start event."""
        self._free: list[Slot] = []
        self._made = 0
        self.pending: deque[Slot] = deque()
        self._target: Slot | None = None
        self._sampling: Slot | None = None
        self._last_gpu = 0
        self.unseen_ns = 0
        """What the hooks' own measure lacks: the time of ``late``, less the time in which others waited for room."""
        self.anchor_error_ns = -1
        self._anchor: Any = None
        self._anchor_ns = 0
        self._anchor_due = 0
        self._tries: list[tuple[int, int, Any]] = []
        self._own_stream: Any = None

    # --- a forward -------------------------------------------------------------------------------

    def begin(self) -> Slot | None:
        """Entry of a forward: a slot, or None (capturing, ring full, switched off)."""
        if not self.on:
            return None
        try:
            if self._capturing():
                return None
            if self._free:
                slot = self._free.pop()
            elif self._made < RING:
                slot = Slot(self._event)
                self._made += 1
            else:
                self.lost += 1
                return None
            slot.has_start = slot.has_end2 = slot.held = False
            if self.entry_start:
                self._record(slot.start)
                slot.has_start = True
            return slot
        except Exception as error:
            self._fail(error)
            return None

    def late(self) -> None:
        """A later point of the running forward: its GPU work begins after this."""
        slot = self.current
        if slot is not None:
            try:
                before = self._clock()
                slot.start.record(self._stream)
                slot.has_start = True
                took = self._clock() - before
                if took < ROOM_NS:
                    self.unseen_ns += took
            except Exception as error:
                self._fail(error)

    def end(self, slot: Slot, row: Row, target: bool) -> None:
        """Return of a forward. Its row is emitted when its events have happened."""
        try:
            self._record(slot.end)
            slot.row = row
            slot.at = self._clock()
            slot.held = True  # until step_end: sampling may follow
            self.pending.append(slot)
            if target:
                self._target = slot
        except Exception as error:
            self._emit(row, -1, -1, -1)
            self._fail(error)

    def _record(self, event: Any) -> None:
        before = self._clock()
        event.record(self._stream)
        took = self._clock() - before
        if took >= ROOM_NS:
            self.unseen_ns -= took

    def drop(self, slot: Slot) -> None:
        """A forward that raised: no row."""
        self._free.append(slot)

    # --- a step ----------------------------------------------------------------------------------

    def step_end(self, result: Any) -> None:
        """Return of ``run_batch``: what sampling and copies were launched end here, unless sampling is delayed."""
        if not self.on:
            return
        try:
            slot, self._target = self._target, None
            for waiting in self.pending:
                waiting.held = False
            if slot is not None:
                if getattr(result, "delay_sample_func", None) is not None:
                    slot.held = True
                    self._sampling = slot
                else:
                    self._record(slot.end2)
                    slot.has_end2 = True
            behind = self.pending
            if len(behind) >= POLL_AT or (behind and self._clock() - behind[0].at > POLL_AFTER_NS):
                self.poll()
        except Exception as error:
            self._fail(error)

    def sampled(self) -> None:
        """Return of the delayed sampling (grammar): now the step's GPU work ends."""
        slot, self._sampling = self._sampling, None
        if slot is not None and self.on:
            try:
                slot.end2.record(self._stream)
                slot.has_end2 = True
                slot.held = False
            except Exception as error:
                self._fail(error)

    def poll(self) -> None:
        """Emit the forwards whose events have happened; make a new anchor when one is due."""
        if not self.on:
            return
        try:
            now = self._clock()
            if now >= self._anchor_due:
                self._try_anchor(now)
            if self._anchor is None:
                return
            for _ in range(min(POLL_MOST, len(self.pending))):
                slot = self.pending[0]
                if slot.held or not (slot.end2 if slot.has_end2 else slot.end).query():
                    return
                self.pending.popleft()
                self._finish(slot)
        except Exception as error:
            self._fail(error)

    def _finish(self, slot: Slot) -> None:
        gpu0 = gpu1 = gpu2 = -1
        if slot.has_start:
            gpu0 = self._anchor_ns + round(self._anchor.elapsed_time(slot.start) * 1e6)
            if self._stream is not None:  # one stream: in order; a new anchor must not turn that round
                gpu0 = max(gpu0, self._last_gpu)
            gpu1 = gpu0 + round(slot.start.elapsed_time(slot.end) * 1e6)
        else:
            gpu1 = self._anchor_ns + round(self._anchor.elapsed_time(slot.end) * 1e6)
        if slot.has_end2:
            gpu2 = gpu1 + round(slot.end.elapsed_time(slot.end2) * 1e6)
        self._last_gpu = max(gpu1, gpu2)
        row, slot.row = slot.row, ()
        self._free.append(slot)
        self._emit(row, gpu0, gpu1, gpu2)

    # --- the clock -------------------------------------------------------------------------------

    def _event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def _try_anchor(self, now: int) -> None:
        if self._own_stream is None:
            stream = self._cuda.Stream(priority=-1)
            for _ in range(8):  # torch hands streams out of a pool, round and round: not the forwards' own one
                if self._stream is None or stream.cuda_stream != getattr(self._stream, "cuda_stream", None):
                    break
                stream = self._cuda.Stream(priority=-1)
            self._own_stream = stream
        event = self._event()
        before = self._clock()
        event.record(self._own_stream)
        for _ in range(ANCHOR_POLLS):
            if event.query():
                after = self._clock()
                self._tries.append((after - before, (before + after) // 2, event))
                break
            if self._clock() - before > ANCHOR_SPIN_NS:
                self._tries.append((1 << 62, 0, None))
                break
        else:
            self._tries.append((1 << 62, 0, None))
        width, middle, event = min(self._tries, key=lambda t: t[0])
        if event is None:
            if len(self._tries) >= ANCHOR_TRIES:  # the GPU is too busy to answer: keep the old one for a while
                self._tries.clear()
                self._anchor_due = now + REANCHOR_NS // 10
        elif width <= ANCHOR_GOOD_NS or len(self._tries) >= ANCHOR_TRIES or self._anchor is None:
            # the first anchor is taken at once, and improved by the tries that follow
            good = width <= ANCHOR_GOOD_NS or len(self._tries) >= ANCHOR_TRIES
            self._anchor, self._anchor_ns, self.anchor_error_ns = event, middle, width // 2
            if good:
                self._tries.clear()
                self._anchor_due = now + REANCHOR_NS

    # --- the end ---------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        self.on = False
        self.why_off = f"{type(error).__name__}: {error}"[:300]
        self.current = self._target = self._sampling = None
        pending, self.pending = self.pending, deque()
        for slot in pending:
            self._emit(slot.row, -1, -1, -1)

    def close(self) -> None:
        """Let go of every event. On the main thread where that can be had: events die with their last reference."""
        self.on = False
        self.current = self._target = self._sampling = self._anchor = self._own_stream = None
        self.pending.clear()
        self._free.clear()
        self._tries.clear()
