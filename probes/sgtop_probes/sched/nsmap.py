"""Inside a pid namespace the scheduler's tracepoints still speak the host's pids.

A filter by our own ids would find nothing, or somebody else. A thread's host id is learned from the first sample of a
sched_switch event bound to that thread: its raw data name the host id of the thread that leaves the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import perf
from .tracefs import SAMPLE, SwitchLayout

_SAMPLE_TYPE = perf.SAMPLE_TID | perf.SAMPLE_TIME | perf.SAMPLE_CPU | perf.SAMPLE_RAW


class HostTids:
    """Host id of each watched thread, learned as soon as it leaves the CPU once."""

    def __init__(self, layout: SwitchLayout, *, translate: bool) -> None:
        """``translate``: False in the initial pid namespace, where ids are the host's already."""
        self._layout = layout
        self._translate = translate
        self._known: dict[int, int] = {}
        self._asking: dict[int, perf.Ring] = {}

    def want(self, tids: Iterable[int]) -> None:
        """Learn these, forget others.

        Raises:
            OSError: an event could not be opened, for another reason than that the thread is gone.
        """
        want = set(tids)
        if not self._translate:
            self._known = {t: t for t in want}
            return
        self._known = {t: h for t, h in self._known.items() if t in want}
        for tid in [t for t in self._asking if t not in want]:
            self._asking.pop(tid).close()
        for tid in want - self._known.keys() - self._asking.keys():
            try:
                fd = perf.open_event(
                    perf.TYPE_TRACEPOINT, self._layout.switch_id, pid=tid, cpu=-1, sample_type=_SAMPLE_TYPE
                )
            except ProcessLookupError:
                continue
            ring = perf.Ring(fd, 1)
            perf.enable(fd)
            self._asking[tid] = ring

    def learn(self) -> bool:
        """True when something new is known."""
        new = False
        for tid, ring in list(self._asking.items()):
            data = ring.read()
            for type_, _misc, body, end in perf.records(data):
                if type_ == perf.RECORD_SAMPLE and end - body >= SAMPLE.size + self._layout.switch_raw:
                    self._known[tid] = self._layout.prev.unpack_from(data, body + SAMPLE.size)[1]
                    self._asking.pop(tid).close()
                    new = True
                    break
        return new

    @property
    def pending(self) -> bool:
        """Some thread has not left the CPU yet."""
        return bool(self._asking)

    def map(self) -> dict[int, int]:
        """Host id → id in sgtop's namespace."""
        return {host: own for own, host in self._known.items()}

    def close(self) -> None:
        """Close the events of threads that were never seen."""
        for ring in self._asking.values():
            ring.close()
        self._asking.clear()
