"""Level C: switch records of the watched threads alone; no capability, for own processes.

Preempted or not, and for how long; not by whom (likely culprits come from /proc). Needs perf_event_paranoid ≤ 2 (and a
kernel without the distributions' stricter levels), and no seccomp filter that refuses perf_event_open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from . import perf
from .intervals import Tracker
from .names import Names
from .own import Event, open_ring, parse
from .rings import Waiter, pages_for_threads
from .side import Side
from .threads import WatchList
from .types import PREEMPTED, UNKNOWN, Needs, Rows, SchedBatch, Watched


class LevelC:
    """As ``types.SchedSource``."""

    level = "C"

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        every_thread: bool = False,
        pages: int | None = None,
        needs: Needs | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Open one event a thread.

        Raises:
            OSError: perf_event_open refused for a thread that lives; nothing stays open then.
        """
        self._clock = clock
        self.needs = needs
        self._list = WatchList(watched, every_thread)
        self._pages = pages or pages_for_threads(len(self._list.tids), os.cpu_count() or 1)
        self._tracker = Tracker(Names().resolve)
        self._rings: dict[int, perf.Ring] = {}
        self._waiter = Waiter()
        self.lost = 0
        self._refused: OSError | None = None
        self._sync()
        if self._refused is not None and not self._rings:
            self.close()
            raise self._refused
        self._side = Side(watched, suspects=True)

    def _sync(self) -> None:
        for tid in self._rings.keys() - self._list.tids:
            ring = self._rings.pop(tid)
            self._waiter.remove(ring)
            ring.close()
        for tid in self._list.tids - self._rings.keys():
            try:
                ring = open_ring(tid, self._pages)
            except ProcessLookupError:
                continue
            except OSError as e:
                # One thread refused (another user's rank) must not cost the others; none at all is an error above.
                self._refused = e
                continue
            self._rings[tid] = ring
            self._waiter.add(ring)
        self._tracker.watch({t: t for t in self._rings})

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these from now on."""
        self._list.watched = tuple(watched)
        self._side.watch(watched)
        self._list.rescan()
        self._sync()

    def wait(self, timeout_s: float) -> None:
        """Until a ring is half full."""
        self._waiter.wait(timeout_s)

    def poll(self) -> SchedBatch:
        """As ``types.SchedSource``."""
        cpu_begun, begun = time.thread_time_ns(), self._clock()
        if self._list.due(begun):
            self._sync()
        rows, cpus = Rows(), set[int]()
        for ring in self._rings.values():
            # Threads do not mix: each ring is in order, and no other ring has events of its thread.
            events: list[Event] = []
            self.lost += parse(ring.read(), events)
            for t, is_in, tid, cpu, preempted in events:
                if is_in:
                    self._tracker.back(t, tid, cpu, UNKNOWN, b"", rows)
                else:
                    self._tracker.out(t, tid, cpu, bool(preempted), UNKNOWN, b"")
        opened = self._tracker.opened()
        cpus.update(c for c, ns in self._tracker.take_waited().items() if ns > 0)
        cpus.update(o.cpu for o in opened if o.kind == PREEMPTED)
        return self._side.batch(
            self.level,
            begun,
            cpu_begun,
            rows,
            opened=opened,
            suspects=self._side.suspects(begun, cpus, self._list.tids),
            lost=self.lost,
            migrations=self._tracker.own_migrations(),
        )

    def close(self) -> None:
        """Close all events."""
        for ring in self._rings.values():
            ring.close()
        self._rings = {}
        self._waiter.close()
