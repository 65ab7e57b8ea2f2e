"""Sending what the hooks wrote, 5 times a second and in slices, and the agent's own figures with it.

After each slice the thread sleeps a fraction of a millisecond, because giving the GIL back for an instant does not hand
it over: the main thread would have to wake up first. Each slice and each waking costs the main thread two switches and
its warm caches, which is more than the work itself: so few of both, and no more often than the screen needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from . import wire
from .hooks import Hooks

FLUSH_NS = 200_000_000
FIRST_FLUSHES_NS = 50_000_000
FIRST_NS = 1_000_000_000
"""For so long after the hooks went on flushes come quicker: somebody waits for the first figures."""
STAT_NS = 400_000_000
REFRESH_NS = 1_000_000_000
SLICE_NS = 90_000
"""A slice ends with the piece of work (some 50 µs at most) that is in hand after so long."""
SLICE_PAUSE_S = 0.0003

mono = time.monotonic_ns


class Flushes:
    """When to flush, and the flush itself. Times are CLOCK_MONOTONIC nanoseconds; ``due``: of the next flush."""

    def __init__(self) -> None:
        self.due = self._stat_due = self._refresh_due = self._quick_until = 0

    def begin(self) -> None:
        """The hooks have just gone on: flush at once, and quickly for a while."""
        self.due = self._refresh_due = mono()
        self._quick_until = mono() + FIRST_NS
        self._stat_due = mono() + STAT_NS

    def flush(self, hooks: Hooks, now: int, send: Callable[[bytes], None]) -> None:
        """Send everything that ``hooks`` holds by ``now``, and ``stat`` when it is time for it."""
        self.due = now + (FIRST_FLUSHES_NS if now < self._quick_until else FLUSH_NS)
        frames, begun = [], mono()
        for frame in hooks.drain(now):
            frames.append(frame)
            if mono() - begun > SLICE_NS:
                time.sleep(SLICE_PAUSE_S)
                begun = mono()
        if frames:
            send(b"".join(frames))
        if now >= self._stat_due:
            self._stat_due = now + STAT_NS
            send(wire.pack(_stat(hooks, now)))

    def time_to_refresh(self, now: int) -> bool:
        """Whether the hooks are to look at the scheduler again; once every ``REFRESH_NS``."""
        if now < self._refresh_due:
            return False
        self._refresh_due = now + REFRESH_NS
        return True


def _stat(hooks: Hooks, now: int) -> wire.Frame:
    n, p50, p99, most = hooks.take_hook_ns()
    return {
        "k": "stat",
        "t": now,
        "ct": int(hooks.scheduler.forward_ct),
        "hook_n": n,
        "hook_p50_ns": p50,
        "hook_p99_ns": p99,
        "hook_max_ns": most,
        "agent_cpu_ns": time.thread_time_ns(),
        "lost": hooks.lost(),
        "off": hooks.off(),
    }
