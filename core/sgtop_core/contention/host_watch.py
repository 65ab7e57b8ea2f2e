"""Reads this host while a server is watched: scheduling samples five times a second, GPUs once, places every two.

Two threads, so that a driver that hangs never holds up the samples. They only leave dataclasses behind: SchedBatch,
HostFacts, and tuples of Gpu.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from sgtop_probes.gpu.mapping import ranks_by_gpu
from sgtop_probes.gpu.nvml import GpuSource
from sgtop_probes.gpu.types import GpuBatch
from sgtop_probes.sched.cgroup import ThrottleReader
from sgtop_probes.sched.counters import stat
from sgtop_probes.sched.open_best import open_best
from sgtop_probes.sched.threads import ancestors, exists, is_kernel_thread, is_sgtop, thread_count
from sgtop_probes.sched.topology import Topology, allowed_cpus, read_topology
from sgtop_probes.sched.types import Needs, SchedBatch, SchedSource, Watched

from sgtop_core.contention import gpus
from sgtop_core.contention.facts import HostFacts, RankIds
from sgtop_core.contention.place import place
from sgtop_core.model.snapshot import Gpu, Place

SCHED_S, SLOW_S, PLACES_S = 0.2, 1.0, 2.0
SEEN = 4096
LATELY_NS = 12_000_000_000
"""So long after it took the CPU is it looked for whether a process has ended: findings speak of it no longer."""
LATELY = 128
KEPT = 256
"""Events that wait for the session; more than 20 s of them. The oldest go first."""

Event = SchedBatch | HostFacts | tuple[Gpu, ...]


class Gpus(Protocol):
    """``sgtop_probes.gpu.nvml.GpuSource`` is one."""

    def poll(self) -> GpuBatch:
        """All GPUs now."""

    def close(self) -> None:
        """Let go of the driver."""


class HostWatch:
    """See the module. ``watch`` and ``drain`` may be called from any thread."""

    def __init__(
        self,
        *,
        wake: Callable[[], None] = lambda: None,
        open_source: Callable[[Sequence[Watched]], SchedSource] = open_best,
        open_gpus: Callable[[], Gpus] = GpuSource,
        topology: Callable[[], Topology] = read_topology,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``wake`` is called when there is something to drain."""
        self._wake, self._clock = wake, clock
        self._open_source, self._open_gpus, self._topology = open_source, open_gpus, topology
        self._events: deque[tuple[int, Event]] = deque(maxlen=KEPT)
        self._stop = threading.Event()
        self._changed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ranks: Mapping[str, RankIds] = {}
        self._server_pids: tuple[int, ...] = ()
        self._facts = HostFacts()
        self._lock = threading.Lock()
        self._seen: dict[int, str] = {}
        self._lately: dict[int, int] = {}
        self._alive: set[int] = set()
        self._ended: tuple[int, ...] = ()
        self._next_look = 0
        self._needs = ""
        self.problem = ""
        """A mistake in one of the threads, in words."""

    # --- any thread -----------------------------------------------------------------------------------

    def watch(self, ranks: Mapping[str, RankIds], server_pids: Collection[int]) -> None:
        """Watch these ranks from now on; ``server_pids``: all processes of the server."""
        self._ranks, self._server_pids = dict(ranks), tuple(sorted(server_pids))
        self._seen = {}
        self._changed.set()

    def start(self) -> None:
        """Begin."""
        for name, work in (("sgtop-sched", self._samples), ("sgtop-host", self._slow)):
            t = threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            self._threads.append(t)
            t.start()

    def drain(self) -> list[tuple[int, Event]]:
        """(CLOCK_MONOTONIC ns, event) since the call before."""
        out = []
        while True:
            try:
                out.append(self._events.popleft())
            except IndexError:
                return out

    def stop(self) -> None:
        """End both threads and give everything back."""
        self._stop.set()
        self._changed.set()
        for t in self._threads:
            t.join(timeout=2.0)
        self._threads = []

    # --- its threads ----------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except Exception as e:  # what is shown must go on without these figures
                self.problem = f"{type(e).__name__}: {e}"
                self._stop.wait(SLOW_S)

    def _put(self, event: Event) -> None:
        self._events.append((self._clock(), event))
        self._wake()

    def _watched(self) -> list[Watched]:
        return [Watched(r.pid, r.tid, label) for label, r in self._ranks.items()]

    def _samples(self) -> None:
        self._changed.clear()
        while not self._ranks:
            if self._stop.is_set():
                return
            self._changed.wait(SLOW_S)
            # Told of a server that has no ranks yet: an event that stays set would not be waited for again.
            self._changed.clear()
        source = self._open_source(self._watched())
        needs: Needs | None = None
        try:
            while not self._stop.is_set():
                if self._changed.is_set():
                    self._changed.clear()
                    source.watch(self._watched())
                    self._send_facts()
                if source.needs != needs or not self._facts.ranks:
                    needs = source.needs
                    self._needs = "" if needs is None else f"level {needs.level} needs {needs.missing}: {needs.mend}"
                    self._send_facts()
                source.wait(SCHED_S)
                batch = source.poll()
                if self._know(batch) | self._who_ended(batch):
                    self._send_facts()
                self._put(batch)
        finally:
            source.close()

    def _know(self, batch: SchedBatch) -> bool:
        """Find out what kind of process those are that took the CPU; True when one is not just any."""
        new = False
        found = {*batch.who_pid, *(s.pid for s in batch.suspects)}
        for pid in found - self._seen.keys():
            if len(self._seen) >= SEEN:
                self._seen.clear()
            kind = self._seen[pid] = self._kind(pid) if pid > 0 else "other"
            new = new or kind != "other"
        return new

    def _who_ended(self, batch: SchedBatch) -> bool:
        """Look once a second which of those that took the CPU lately have ended; True when that has changed."""
        for pid in {*batch.who_pid, *(s.pid for s in batch.suspects)}:
            if pid > 0 and self._seen.get(pid) in ("other", "another-sgtop"):
                self._lately.pop(pid, None)
                self._lately[pid] = batch.time
        if batch.time < self._next_look:
            return False
        self._next_look = batch.time + int(SLOW_S * 1e9)
        newest = [p for p, t in self._lately.items() if batch.time - t < LATELY_NS][-LATELY:]
        self._lately = {p: self._lately[p] for p in newest}
        alive = {p for p in newest if exists(p)}
        # A pid of the host that was never here is no process that ended: it is outside of this container.
        before, gone = self._ended, set(newest) - alive
        self._ended = tuple(sorted(gone & (self._alive | set(before)) if batch.host_pids else gone))
        self._alive = (self._alive | alive) & set(newest)
        return self._ended != before

    def _kind(self, pid: int) -> str:
        if is_kernel_thread(pid):
            return "kernel"
        line = {pid, *ancestors(pid)}
        # The server first: `sgtop run` may have started it.
        if line & set(self._server_pids):
            return "server"
        if os.getpid() in line:
            return "sgtop"
        return "another-sgtop" if is_sgtop(pid) else "other"

    def _of_kind(self, kind: str) -> set[int]:
        return {p for p, k in list(self._seen.items()) if k == kind}

    def _send_facts(self, places: Mapping[str, Place] | None = None) -> None:
        """Send what is known when it has changed; both threads do."""
        with self._lock:
            facts = HostFacts(
                ranks=self._ranks,
                places=self._facts.places if places is None else places,
                server_pids=tuple(sorted({*self._server_pids, *self._of_kind("server")})),
                sgtop_pids=tuple(sorted({os.getpid(), *self._of_kind("sgtop")})),
                kernel_pids=tuple(sorted(self._of_kind("kernel"))),
                other_sgtop_pids=tuple(sorted(self._of_kind("another-sgtop"))),
                ended_pids=self._ended,
                needs=self._needs,
            )
            if facts != self._facts:
                self._facts = facts
                self._put(facts)

    def _slow(self) -> None:
        source = self._open_gpus()
        topology = self._topology()
        next_places = 0.0
        try:
            while not self._stop.is_set():
                now = self._clock() / 1e9
                batch = source.poll()
                ranks = dict(self._ranks)
                by_gpu = ranks_by_gpu(batch.gpus, {k: (r.pid, r.gpu_index) for k, r in ranks.items()})
                if batch.available:
                    self._put(gpus.view(batch, by_gpu))
                if ranks and now >= next_places:
                    next_places = now + PLACES_S
                    self._send_facts(self._places(topology, ranks, batch, by_gpu))
                self._stop.wait(SLOW_S)
        finally:
            source.close()

    @staticmethod
    def _places(
        topology: Topology, ranks: Mapping[str, RankIds], batch: GpuBatch, by_gpu: Mapping[str, tuple[str, ...]]
    ) -> dict[str, Place]:
        bus = {label: g.bus_id for g in batch.gpus for label in by_gpu.get(g.uuid, ())}
        out = {}
        for label, r in ranks.items():
            seen = stat(r.pid, r.tid)
            cpu = seen[3] if seen is not None else None
            out[label] = place(
                topology,
                allowed_cpus(r.tid),
                cpu=cpu,
                gpu_bus_id=bus.get(label),
                frequency=topology.frequency(cpu) if cpu is not None else None,
                threads=thread_count(r.pid),
                quota=ThrottleReader(r.pid).read(),
                sudo=os.geteuid() != 0,
            )
        return out
