"""Exact crediting: what ran on a CPU while a watched thread waited for it.

The filtered events name the first competitor only. Where watched threads wait, every switch of that CPU is read for
some seconds, so that each of several competitors is credited with what it ran. The cost is bounded: a CPU that
switches too often for it is left out for a while, and the first competitor is credited alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping

WORTH_NS = 1_000_000
"""Waits of this length in one poll make a CPU worth reading whole."""
KEEP_NS = 3_000_000_000
"""It stays so this long after the last wait."""
MOST_EVENTS_PER_S = 1_000
"""All exact CPUs together; about a third of a percent of a core."""
BACKOFF_NS = 10_000_000_000
MOST_CPUS = 16


class Timeline:
    """Who ran on one CPU, as (time, tid, comm) of each switch-in, bounded."""

    def __init__(self, most: int = 50_000) -> None:
        self._t: list[int] = []
        self._who: list[tuple[int, bytes]] = []
        self._most = most

    def add(self, time: int, tid: int, comm: bytes) -> None:
        """A switch. One that comes late (another ring) is put where it belongs."""
        if self._t and time < self._t[-1]:
            i = bisect_right(self._t, time)
            self._t.insert(i, time)
            self._who.insert(i, (tid, comm))
        else:
            self._t.append(time)
            self._who.append((tid, comm))
        if len(self._t) > self._most:
            self.forget(self._t[self._most // 4])

    def forget(self, before: int) -> None:
        """Drop what ended before."""
        i = bisect_right(self._t, before) - 1
        if i > 0:
            del self._t[:i], self._who[:i]

    def split(self, victim: int, t0: int, t1: int, tid: int, comm: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """(from, to, tid, comm) over t0..t1, neighbours merged. ``tid`` ran first, until the timeline says otherwise.

        The same switch is stamped a microsecond apart in two rings: the waiting thread itself is never credited.
        """
        at, who = t0, (tid, comm)
        i = bisect_right(self._t, t0)
        for k in range(i, len(self._t)):
            t = self._t[k]
            if t >= t1:
                break
            if self._who[k] != who and self._who[k][0] != victim:
                if t > at:
                    yield at, t, *who
                at, who = t, self._who[k]
        if t1 > at:
            yield at, t1, *who

    def running(self, at: int) -> tuple[int, bytes] | None:
        """Who ran at a time, where the timeline reaches back that far."""
        i = bisect_right(self._t, at) - 1
        return self._who[i] if i >= 0 else None


class ExactPlan:
    """Which CPUs are read whole. Pure: times and counts go in, the set comes out."""

    def __init__(self, most_per_s: int = MOST_EVENTS_PER_S, most_cpus: int = MOST_CPUS) -> None:
        self._until: dict[int, int] = {}
        self._barred: dict[int, int] = {}
        self._most_per_s = most_per_s
        self._most_cpus = most_cpus

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs to read whole now."""
        return frozenset(self._until)

    def update(self, now: int, elapsed: int, waited: Mapping[int, int], events: Mapping[int, int]) -> frozenset[int]:
        """One poll's waits (CPU → ns) and exact events read (CPU → count) over ``elapsed`` ns; the CPUs from now on."""
        self._barred = {c: t for c, t in self._barred.items() if t > now}
        for cpu, ns in sorted(waited.items(), key=lambda x: -x[1]):
            if (
                ns >= WORTH_NS
                and cpu not in self._barred
                and (cpu in self._until or len(self._until) < self._most_cpus)
            ):
                self._until[cpu] = now + KEEP_NS
        self._until = {c: t for c, t in self._until.items() if t > now}
        allowed = self._most_per_s * max(elapsed, 1) / 1e9
        load = {c: events.get(c, 0) for c in self._until}
        while load and sum(load.values()) > max(allowed, 200):
            busiest = max(load, key=lambda c: load[c])
            del load[busiest], self._until[busiest]
            self._barred[busiest] = now + BACKOFF_NS
        return self.cpus


class Exact:
    """The timelines of the CPUs that are read whole, fed from rings that ``make`` opens."""

    def __init__(self, make: Callable[[int], ExactRing], plan: ExactPlan | None = None) -> None:
        self._make = make
        self._plan = plan or ExactPlan()
        self._rings: dict[int, ExactRing] = {}
        self._lines: dict[int, Timeline] = {}
        self._events: dict[int, int] = {}
        self.failed = ""
        """Why a CPU could not be read whole."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPUs read whole now."""
        return tuple(sorted(self._lines))

    def drain(self) -> None:
        """Read the rings; call it after those of the filtered events and before these are worked on."""
        self._events = {}
        for cpu, ring in self._rings.items():
            line = self._lines.get(cpu)
            if line is None:
                continue
            n = 0
            for time, tid, comm in ring.read():
                line.add(time, tid, comm)
                n += 1
            self._events[cpu] = n

    def split(
        self, victim: int, cpu: int, t0: int, t1: int, first: tuple[int, bytes] | None, last: tuple[int, bytes]
    ) -> Iterator[tuple[int, int, int, bytes]]:
        """As ``intervals.Split``."""
        line = self._lines.get(cpu)
        if first is None:
            ran = line.running(t0) if line is not None else None
            # The idle task makes room at once: where it seems to run on, the switch from it was missed.
            first = ran if ran is not None and ran[0] not in (victim, 0) else last
        if line is None:
            yield t0, t1, *first
        else:
            yield from line.split(victim, t0, t1, *first)

    def plan(self, now: int, elapsed: int, waited: Mapping[int, int], needed_from: int) -> None:
        """Open and close what the waits of this poll ask for; forget what no open interval needs."""
        want = self._plan.update(now, elapsed, waited, self._events)
        for cpu in [c for c in self._lines if c not in want]:
            self._rings[cpu].stop()
            del self._lines[cpu]
        for cpu in want - self._lines.keys():
            try:
                ring = self._rings.get(cpu)
                if ring is None:
                    ring = self._rings[cpu] = self._make(cpu)
                ring.start()
            except OSError as e:
                self.failed = str(e)
                continue
            self._lines[cpu] = Timeline()
        for line in self._lines.values():
            line.forget(needed_from)

    @property
    def lost(self) -> int:
        """Records that did not fit in the rings."""
        return sum(r.lost for r in self._rings.values())

    def rings(self) -> Iterable[ExactRing]:
        """Those that exist."""
        return self._rings.values()

    def close(self) -> None:
        """Close all rings."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()
        self._lines.clear()


class ExactRing:
    """What Exact needs of a ring: switch-ins of one CPU."""

    lost: int = 0

    def start(self) -> None:
        """Record from now on."""
        raise NotImplementedError

    def stop(self) -> None:
        """Record no more; throw away what is there."""
        raise NotImplementedError

    def read(self) -> Iterable[tuple[int, int, bytes]]:
        """(time, tid, comm) of each switch-in."""
        raise NotImplementedError

    def close(self) -> None:
        """Give it back."""
        raise NotImplementedError
