"""SGLang servers of this machine: their processes, ranks and ports, from /proc alone; nothing is asked of the server.

A scheduler is known by its process title, ``sglang::scheduler…`` (ranks stand in it), its server by descent: the first
ancestor that is not titled ``sglang::`` holds the HTTP server and the tokenizer. A server that is still starting has
no such child yet, or no listening port: it is known by its command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import procfs, sockets, titles
from .launch import LaunchArgs, is_launch, parse_launch
from .titles import Title


@dataclass(frozen=True)
class RankProcess:
    """One scheduler. ``label`` such as ``TP0`` or ``DP1 PP0 TP3``; ranks are None where the server has no such axis."""

    label: str
    pid: int | None
    """None: its process is not on this host."""
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    state: str = "running"
    """running, starting, stopped (SIGSTOP or a tracer), elsewhere (on another host)."""


@dataclass(frozen=True)
class HelperProcess:
    """A process of the server beside the schedulers.

    ``role``: tokenizer (the HTTP server's process), detokenizer, dp-controller, tokenizer-worker, detokenizer-router.
    """

    role: str
    pid: int


@dataclass(frozen=True)
class Server:
    """One SGLang server. ``pid``: its main process."""

    pid: int
    port: int | None
    """Where HTTP is served, in its own network namespace; None: not listening (yet), or no HTTP at all."""
    host: str
    """The address that it listens on; 0.0.0.0 and :: mean all."""
    state: str
    """running, starting."""
    ranks: tuple[RankProcess, ...]
    helpers: tuple[HelperProcess, ...]
    args: LaunchArgs
    uid: int | None
    container: str | None
    """First 12 digits of the container's id, as ``docker ps`` shows it."""
    own_network: bool
    """Its port can be reached from here as ``url`` says; else it listens in another network namespace."""
    command: tuple[str, ...] = ()

    @property
    def url(self) -> str | None:
        """Base of its HTTP interface, seen from its own network namespace."""
        if self.port is None:
            return None
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "*": "127.0.0.1"}.get(self.host, self.host)
        scheme = "https" if self.args.tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"

    @property
    def name(self) -> str:
        """How to name it to a user and to ``--attach``."""
        return f":{self.port}" if self.port is not None and self.own_network else f"pid:{self.pid}"


@dataclass(frozen=True)
class _Seen:
    pid: int
    ppid: int
    title: Title | None
    args: tuple[str, ...]


def _scan() -> dict[int, _Seen]:
    seen = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        fields = procfs.stat(pid)
        if not fields or fields[0] in "ZX":
            continue
        args = tuple(procfs.arguments(pid))
        text = " ".join(args) or (procfs.read(f"/proc/{pid}/comm") or "").strip()
        seen[pid] = _Seen(pid, int(fields[1]), titles.parse(text), args)
    return seen


def _main_of(pid: int, seen: dict[int, _Seen]) -> int:
    """The first ancestor without an SGLang title; the last titled one when its parent has gone."""
    current = seen[pid]
    while current.title is not None:
        parent = seen.get(current.ppid)
        if parent is None or parent.pid == 1:
            # pid 1 may be the server itself (a container without an init) or whoever adopts orphans.
            return parent.pid if parent is not None and is_launch(parent.args) else current.pid
        current = parent
    return current.pid


def find_servers() -> list[Server]:
    """All servers that this user can see, by port.

    Raises nothing: what cannot be read is left out or None.
    """
    seen = _scan()
    groups: dict[int, list[_Seen]] = {}
    for process in seen.values():
        if process.title is not None:
            groups.setdefault(_main_of(process.pid, seen), []).append(process)
    parents = {p.ppid for p in seen.values() if is_launch(p.args)}
    for process in seen.values():
        # A wrapper that carries the same command line (timeout, a shell) is not the server: its child is.
        if is_launch(process.args) and process.pid not in parents and process.pid not in groups:
            groups[process.pid] = []
    # Sockets of the uvicorn workers and of the tokenizer workers count as the server's.
    servers = [_server(pid, members, seen) for pid, members in groups.items()]
    return sorted((s for s in servers if s is not None), key=lambda s: (s.port is None, s.port or 0, s.pid))


def _server(pid: int, members: Sequence[_Seen], seen: dict[int, _Seen]) -> Server | None:
    main = seen[pid]
    schedulers = [m for m in members if m.title is not None and m.title.role == "scheduler"]
    if not schedulers and not is_launch(main.args):
        return None  # a detokenizer that outlives its server, another program with such a title
    args = parse_launch(main.args)
    launched = is_launch(main.args)
    http = [pid, *(m.pid for m in members if m.title is not None and m.title.role == "tokenizer-worker")]
    wanted = args.port if args.port is not None else (30000 if launched else None)
    listening = sockets.listening_of(http, wanted)
    socket = _http_socket(listening, wanted)
    state = "starting" if (launched and socket is None) or not schedulers else "running"
    ranks = tuple(sorted((_rank(s, state) for s in schedulers), key=_rank_order))
    helpers = [] if main.title is not None else [HelperProcess("tokenizer", pid)]
    helpers += [HelperProcess(m.title.role, m.pid) for m in members if m.title and m.title.role != "scheduler"]
    container = procfs.container(pid)
    return Server(
        pid=pid,
        port=socket.port if socket else None,
        host=socket.address if socket else (args.host or "127.0.0.1"),
        state=state,
        ranks=ranks + (_elsewhere(args, ranks) if ranks else ()),
        helpers=tuple(sorted(helpers, key=lambda h: (h.role, h.pid))),
        args=args,
        uid=procfs.uid(pid),
        container=container[:12] if container else None,
        own_network=procfs.shares_namespace(pid, "net") is not False,
        command=main.args,
    )


def _http_socket(listening: Sequence[sockets.Listener], wanted: int | None) -> sockets.Listener | None:
    """SGLang also listens on ports for ZMQ and torch; the one of the command line is HTTP."""
    for s in listening:
        if s.port == wanted:
            return s
    return None


def _rank(process: _Seen, server_state: str) -> RankProcess:
    assert process.title is not None
    ranks = process.title.ranks
    state = "stopped" if procfs.state(process.pid) in ("T", "t") else server_state
    return RankProcess(
        label=process.title.label,
        pid=process.pid,
        tp=ranks.get("TP"),
        pp=ranks.get("PP"),
        dp=ranks.get("DP"),
        ep=ranks.get("EP"),
        state=state,
    )


def _rank_order(rank: RankProcess) -> tuple[int, int, int, str]:
    return (rank.dp or 0, rank.pp or 0, rank.tp or 0, rank.label)


def _elsewhere(args: LaunchArgs, here: Iterable[RankProcess]) -> tuple[RankProcess, ...]:
    """Ranks that the command line promises and that no process here holds: only with several nodes."""
    if (args.nnodes or 1) <= 1:
        return ()
    present = {(r.dp or 0, r.pp or 0, r.tp or 0) for r in here}
    tp, pp, dp = args.tp or 1, args.pp or 1, args.dp or 1
    missing = []
    # With DP attention the DP rank follows from the TP rank; without it every DP replica has all TP ranks.
    replicas = range(1) if args.dp_attention else range(dp)
    for d in replicas:
        for p in range(pp):
            for t in range(tp):
                rank = t * dp // tp if args.dp_attention else d
                if (rank, p, t) in present:
                    continue
                named = {"DP": rank} if dp > 1 else {}
                named |= {"PP": p} if pp > 1 else {}
                named |= {"TP": t} if tp > 1 else {}
                missing.append(
                    RankProcess(titles.label(named), None, t, p if pp > 1 else None, rank if dp > 1 else None, None,
                                "elsewhere")
                )  # fmt: skip
    return tuple(missing)


def resolve(target: str | None) -> Server:
    """The server that ``target`` (``T``) names: see :mod:`sgtop_probes.resolve`.

    Raises:
        TargetError: no such server.
    """
    from .resolve import resolve as by_name  # it needs find_servers from here

    return by_name(target)
