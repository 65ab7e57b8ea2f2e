"""What a session needs of the machine, as one replaceable object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sgtop_agent import wire
from sgtop_probes import procfs
from sgtop_probes.attach.ladder import WAYS, AttachOptions, open_rank
from sgtop_probes.discovery import RankProcess, Server
from sgtop_probes.http import Client, Load, Sample
from sgtop_probes.resolve import resolve
from sgtop_probes.sched.procs import Processes

from sgtop_core.model.snapshot import Process


class Connection(Protocol):
    """A greeted connection to a rank's agent; ``sgtop_probes.client.Connection`` is one."""

    @property
    def hello(self) -> wire.Frame:
        """The agent's hello."""

    @property
    def way(self) -> str:
        """How it came about."""

    def receive(self) -> list[wire.Frame]:
        """What has arrived; never waits. Raises ConnectionLost."""

    def send(self, frame: wire.Frame, fds: Sequence[int] = ()) -> None:
        """Queue a frame, with descriptors; never waits. Raises ConnectionLost."""

    def close(self) -> None:
        """Close; the agent undoes its hooks."""


class Http(Protocol):
    """The server's HTTP interface; ``sgtop_probes.http.Client`` is one. Methods raise HttpError."""

    def server_info(self) -> dict[str, Any]:
        """Arguments and state."""

    def get(self, path: str) -> bytes:
        """Body of any GET."""

    def loads(self) -> list[Load]:
        """Requests and tokens a DP rank."""

    def metrics(self) -> dict[str, list[Sample]]:
        """Samples by name; empty where metrics are off."""


class Backend(Protocol):
    """The machine. Every method may take a while, except ``identity``."""

    def resolve(self, target: str | None) -> Server:
        """The server that ``target`` names. Raises TargetError."""

    def open_rank(self, rank: RankProcess, nvtx: bool, on_event: Callable[[str], None]) -> Connection:
        """Attach to a rank. Raises AttachError."""

    def identity(self, pid: int) -> object | None:
        """Something that is equal for as long as ``pid`` is the same process; None when there is none."""

    def stopped(self, pid: int) -> bool:
        """Whether the process is stopped by a signal."""

    def http(self, server: Server) -> Http | None:
        """The HTTP interface, None where there is none."""

    def processes(self, server: Server) -> Sequence[Process]:
        """CPU of the server's processes since the call before."""


class Machine:
    """The real one. ``ways``: rungs of the attach ladder to try; none: agentless."""

    def __init__(self, ways: Sequence[str] = WAYS) -> None:
        self.ways = tuple(ways)
        self._processes = Processes({})

    def resolve(self, target: str | None) -> Server:
        """See Backend."""
        return resolve(target)

    def open_rank(self, rank: RankProcess, nvtx: bool, on_event: Callable[[str], None]) -> Connection:
        """See Backend."""
        return open_rank(rank, options=AttachOptions(ways=self.ways, nvtx=nvtx), on_event=on_event)

    def identity(self, pid: int) -> object | None:
        """Start time of the process in ticks."""
        state = procfs.state(pid)
        return None if state is None or state in "ZX" else procfs.start_ticks(pid)

    def stopped(self, pid: int) -> bool:
        """See Backend."""
        return procfs.state(pid) == "T"

    def http(self, server: Server) -> Http | None:
        """See Backend."""
        return Client.of(server)

    def processes(self, server: Server) -> Sequence[Process]:
        """See Backend."""
        roles = {r.pid: f"scheduler {r.label}" for r in server.ranks if r.pid is not None}
        roles.update({h.pid: h.role for h in server.helpers})
        self._processes.watch(roles)
        return [Process(u.role, u.pid, u.cpu_share, u.rss_bytes, u.threads) for u in self._processes.read()]
