"""The ladder: the first way in that works is used, and it is known why the better ones did not.

plugin (or ``sgtop run``) → PEP 768 → pending call. All of them failed: ``AttachError``; the caller goes agentless.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..client import Connection
from ..discovery import RankProcess, find_servers
from ..errors import AttachError
from ..http import Client
from . import inject, plugin

WAYS = ("plugin", "pep768", "pending-call")


def poke_server_of(pid: int) -> None:
    """Ask the HTTP server of scheduler ``pid`` something that its scheduler has to answer."""
    for server in find_servers():
        if any(rank.pid == pid for rank in server.ranks):
            http = Client.of(server, timeout=1.0)
            if http is not None:
                http.poke()
            return


def _still_starting(pid: int) -> bool:
    """What the caller knew may be old by now."""
    return all(r.state == "starting" for server in find_servers() for r in server.ranks if r.pid == pid)


@dataclass(frozen=True)
class AttachOptions:
    """How to attach. ``ways``: which rungs may be tried, in this order; ``thread``: whom the pending call borrows."""

    ways: tuple[str, ...] = WAYS
    timeout_s: float = 10.0
    """For all rungs together."""
    nvtx: bool = False
    thread: str = "auto"
    """auto, main, helper."""
    poke: Callable[[int], None] | None = poke_server_of
    """Called once with the pid, on a thread, where the main thread sleeps and the agent is not there after 30 ms.
    An idle server with --sleep-on-idle comes back to Python once a second; a ``GET /server_info`` wakes it at once."""
    package: Path | None = None
    """Another agent than the installed one (tests)."""
    token: str = field(default_factory=lambda: secrets.token_hex(16))


def open_rank(
    rank: RankProcess,
    *,
    options: AttachOptions | None = None,
    on_event: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Connect to the agent of one scheduler process, putting it there if need be. May take ``timeout_s`` seconds.

    ``on_event`` gets a line a rung: what was tried and why it did not do.

    Raises:
        AttachError: no way in; ``kind``, ``why`` and ``mend`` say what to do.
    """
    options = options or AttachOptions()
    if rank.pid is None:
        raise AttachError(f"{rank.label} is not on this host", "its process runs elsewhere", kind="unsupported")
    if rank.state == "starting" and _still_starting(rank.pid):
        # Not a moment to borrow threads: graphs may be captured. An agent would find no event loop and leave anyway.
        raise AttachError(
            f"{rank.label} is still starting",
            "its server does not listen yet",
            "wait, then attach again",
            kind="starting",
        )
    end = clock() + options.timeout_s
    last: AttachError | None = None
    for way in options.ways:
        try:
            if way == "plugin":
                return plugin.connect(rank.pid, options.nvtx)
            return inject.attach(rank.pid, way, options, end, on_event, clock)
        except plugin.NotThere as e:
            on_event(f"{rank.label}: no {way}: {e}")
        except AttachError as e:
            on_event(f"{rank.label}: {way}: {e}")
            if e.kind in ("gone", "foreign", "starting", "hung"):
                raise
            last = e if last is None or last.kind == "unsupported" else last
    raise last or AttachError(f"no way into {rank.label} was allowed", f"tried: {', '.join(options.ways)}")
