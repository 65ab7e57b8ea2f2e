"""The slow side of a session on a thread of its own: is the server still there, how much CPU do its processes use,
and, for ranks without an agent, what does it say over HTTP.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgtop_probes.discovery import RankProcess, Server
from sgtop_probes.errors import TargetError

from sgtop_core.live.backend import Backend
from sgtop_core.live.outside import EVERY_S, Outside
from sgtop_core.model.snapshot import Process, Rank

PERIOD_S = 0.25
"""How often processes are looked at: a restart is noticed this soon."""
SEARCH_S = 2.0
"""How often a server that has gone, or has no rank yet, is looked for; each search reads /proc."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the thread found; the fields that stay at their default say nothing."""

    gone: str = ""
    server: Server | None = None
    processes: Sequence[Process] | None = None
    ranks: Mapping[str, Rank] = field(default_factory=dict)
    seen_s: float = 0.0
    """Seconds that the sums and rates of ``ranks`` are of."""
    info: Mapping[str, Any] = field(default_factory=dict)


class Watch:
    """See the module. ``drain`` and the calls about ranks come from the session's thread."""

    def __init__(self, backend: Backend, clock: Callable[[], int], wake: Callable[[], None]) -> None:
        self._backend, self._clock, self._wake = backend, clock, wake
        self._found: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: Server | None = None
        self._known: dict[int, object | None] = {}
        self._gone = False
        self._scraped: dict[str, tuple[RankProcess, str]] = {}
        self._cpu: dict[int, float | None] = {}
        self._scrape_wanted = threading.Event()
        self.problem = ""
        """What HTTP does not give, in words."""

    def start(self, server: Server) -> None:
        """Begin to watch ``server``."""
        self._take(server)
        for name, work in (("sgtop-watch", self._look), ("sgtop-http", self._scrapes)):
            t = threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            self._threads.append(t)
            t.start()

    def stop(self) -> None:
        """End; does not wait for a request that is under way."""
        self._stop.set()
        self._scrape_wanted.set()

    def drain(self) -> list[Outcome]:
        """What was found since the last call."""
        out = []
        while True:
            try:
                out.append(self._found.get_nowait())
            except queue.Empty:
                return out

    def scrape(self, rank: RankProcess, message: str) -> None:
        """Look at this rank over HTTP from now on; ``message`` says why."""
        self._scraped = {**self._scraped, rank.label: (rank, message)}
        self._scrape_wanted.set()

    def attached(self, rank: RankProcess) -> None:
        """No need any more to look at this rank over HTTP."""
        self._scraped = {k: v for k, v in self._scraped.items() if k != rank.label}
        if not self._scraped:
            self._scrape_wanted.clear()

    # --- its threads ------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run one of the threads; a mistake in it is said once and it goes on after a pause."""
        while not self._stop.is_set():
            try:
                work()
            except Exception as e:
                self.problem = f"a mistake in sgtop itself: {type(e).__name__}: {e}"
                self._stop.wait(SEARCH_S)

    def _put(self, outcome: Outcome) -> None:
        self._found.put(outcome)
        self._wake()

    def _take(self, server: Server) -> None:
        self._server, self._gone = server, False
        self._known = {pid: self._backend.identity(pid) for pid in self._pids(server)}
        self._scraped = {}

    @staticmethod
    def _pids(server: Server) -> list[int]:
        return [server.pid, *(r.pid for r in server.ranks if r.pid is not None)]

    def _look(self) -> None:
        next_search = next_cpu = 0.0
        while not self._stop.wait(PERIOD_S):
            now = self._clock() / 1e9
            server = self._server
            assert server is not None
            if not self._gone:
                ended = [p for p in self._known if self._backend.identity(p) != self._known[p]]
                if ended or None in self._known.values():
                    self._gone = True
                    next_search = now
                    self._put(Outcome(gone=self._farewell(server, ended)))
            incomplete = self._gone or server.state == "starting" or not server.ranks
            if incomplete and now >= next_search:
                next_search = now + SEARCH_S
                again = self._search(server)
                if again is not None:
                    self._take(again)
                    self._put(Outcome(server=again))
            if not self._gone and now >= next_cpu:
                next_cpu = now + 1.0
                processes = self._backend.processes(server)
                self._cpu = {p.pid: p.cpu_share for p in processes}
                self._put(Outcome(processes=processes))

    def _farewell(self, server: Server, ended: Sequence[int]) -> str:
        ranks = {r.pid: r.label for r in server.ranks}
        who = ", ".join(ranks[p] for p in ended if p in ranks)
        what = f"the server (pid {server.pid}) has ended" if server.pid in ended else f"{who or 'a rank'} has ended"
        port = server.port or server.args.port  # one without a scheduler does not listen
        return f"{what}; waiting for it to come back" + (f" on port {port}" if port else "")

    def _search(self, old: Server) -> Server | None:
        """The server as it is now, if that is news: other processes, or more of them, than were known."""
        wanted = f":{old.port or old.args.port}" if (old.port or old.args.port) else None
        for target in dict.fromkeys([f"pid:{old.pid}", wanted]) if not self._gone else [wanted]:
            try:
                new = self._backend.resolve(target)
            except TargetError:
                continue
            same = set(self._pids(new)) == set(self._pids(old)) and new.state == old.state and new.port == old.port
            if not (same and not self._gone) and all(self._backend.identity(p) is not None for p in self._pids(new)):
                return new
        return None

    def _scrapes(self) -> None:
        http, of = None, None
        while not self._stop.is_set():
            self._scrape_wanted.wait()
            server = self._server
            if self._stop.is_set() or server is None:
                return
            if of is not server:
                client, of = self._backend.http(server), server
                http = Outside(client) if client is not None else None
            scraped = self._scraped
            if http is None:
                self.problem = "and it serves no HTTP"
            elif scraped:
                http.look(self._clock() / 1e9)
                self.problem = http.problem
                ranks = {k: http.rank(r, why, self._cpu.get(r.pid or -1)) for k, (r, why) in scraped.items()}
                self._put(Outcome(ranks=ranks, seen_s=http.seen_s, info=http.info))
            self._stop.wait(EVERY_S)
