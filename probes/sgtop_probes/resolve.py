"""From ``T`` (``:PORT``, ``host:PORT`` of this machine, ``pid:N``, or nothing) to one server, or a clear refusal."""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
import socket
from collections.abc import Callable, Sequence

import psutil

from . import procfs, sockets
from .discovery import Server, find_servers
from .errors import NO_PERMISSION, NOT_SGLANG, TargetError

_SYNTAX = "write :PORT, HOST:PORT of this machine, or pid:N"


def resolve(target: str | None, find: Callable[[], Sequence[Server]] = find_servers) -> Server:
    """The server that ``target`` names; without one, the only server there is.

    Raises:
        TargetError: none, several, not of this machine, not SGLang, or not a form of ``T``.
    """
    if not target:
        return _only(find())
    text = target.strip()
    if text.startswith("pid:"):
        return _by_pid(text, find())
    match = re.fullmatch(r"(?:https?://)?(\[[0-9a-fA-F:.%]+\]|[^:\[\]/]*):(\d{1,5})/?", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise TargetError(f"{target!r} names no server", "", _SYNTAX, exit_code=2)
    host, port = match[1].strip("[]"), int(match[2])
    if host:
        _check_local(host, port)
    return _by_port(port, find())


def _only(servers: Sequence[Server]) -> Server:
    if len(servers) == 1:
        return servers[0]
    if not servers:
        raise TargetError(
            "no SGLang server was found on this host",
            "no process is titled sglang::scheduler or runs sglang.launch_server" + _blind(),
            "start one; in a container or as another user, `sgtop doctor` says what hides it",
        )
    ways = "; ".join(
        f"--attach {s.name} ({s.args.served_name or s.args.model or 'pid ' + str(s.pid)})" for s in servers
    )
    raise TargetError(f"{len(servers)} SGLang servers run on this host", "", f"choose one: {ways}")


def _blind() -> str:
    """/proc mounted with hidepid shows a user only their own processes."""
    if os.geteuid() != 0 and procfs.read("/proc/1/stat") is None:
        return "; /proc hides other users' processes from you (hidepid): run sgtop as root or as the server's user"
    return ""


def _by_pid(text: str, servers: Sequence[Server]) -> Server:
    number = text[4:].strip()
    if not number.isdigit():
        raise TargetError(f"{text!r} names no process", "", _SYNTAX, exit_code=2)
    pid = int(number)
    for server in servers:
        if pid in (server.pid, *(r.pid for r in server.ranks), *(h.pid for h in server.helpers)):
            return server
    if not procfs.alive(pid):
        raise TargetError(f"there is no process {pid}", "", _choices(servers))
    raise TargetError(
        f"process {pid} is no part of an SGLang server", f"it is {_describe(pid)}", _choices(servers), NOT_SGLANG
    )


def _choices(servers: Sequence[Server]) -> str:
    if not servers:
        return "start one; no SGLang server was found on this host (`sgtop doctor` says what may hide one)"
    return "SGLang servers here: " + ", ".join(s.name for s in servers)


def _describe(pid: int) -> str:
    words = procfs.title(pid) or (procfs.read(f"/proc/{pid}/comm") or "?").strip()
    return f"{words[:60]}{'…' if len(words) > 60 else ''} (pid {pid})"


def _check_local(host: str, port: int) -> None:
    """Refuse what is another machine's address."""
    if host in ("localhost", "0.0.0.0", "::", "*"):
        return
    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as e:
        why = e.strerror or str(e)
        raise TargetError(f"the name {host} cannot be resolved", why, "use :PORT on the server's own host") from None
    own = {a.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for a in addresses}
    if found & own or any(ipaddress.ip_address(a).is_loopback for a in found):
        return
    raise TargetError(
        f"{host} is not this machine",
        "sgtop reads the server's processes, so it must run where they run",
        f"ssh -t {host} sgtop --attach :{port}",
    )


def _by_port(port: int, servers: Sequence[Server]) -> Server:
    here = [s for s in servers if s.own_network and s.port == port]
    if len(here) == 1:
        return here[0]
    listeners = [s for s in sockets.listening() if s.port == port]
    if not listeners:
        return _without_listener(port, servers)
    holders = _holders(port)
    for pid in holders:
        behind = _behind_proxy(pid, port, servers)
        if behind is not None:
            return behind
        for server in servers:
            if pid in (server.pid, *(h.pid for h in server.helpers)):
                return server  # another port of it: gRPC, metrics
    if holders:
        raise TargetError(
            f"port {port} is not an SGLang server",
            f"{_describe(holders[0])} listens there",
            _choices(servers),
            NOT_SGLANG,
        )
    raise TargetError(
        f"something listens on port {port}, but its process cannot be seen",
        "it belongs to another user or to another pid namespace",
        "run sgtop as root on the host, or in the server's container; " + _choices(servers),
        NO_PERMISSION if os.geteuid() != 0 else NOT_SGLANG,
    )


def _without_listener(port: int, servers: Sequence[Server]) -> Server:
    starting = [s for s in servers if s.state == "starting" and (s.args.port or 30000) == port]
    if len(starting) == 1:
        return starting[0]
    inside = [s for s in servers if not s.own_network and s.port == port]
    if len(inside) == 1:
        return inside[0]
    if len(inside) > 1:
        ways = ", ".join(f"pid:{s.pid}" + (f" (container {s.container})" if s.container else "") for s in inside)
        raise TargetError(f"{len(inside)} containers have a server on port {port}", "", f"choose one: {ways}")
    raise TargetError(f"nothing listens on port {port} of this machine", "", _choices(servers))


def _holders(port: int) -> list[int]:
    """Processes that hold the listening socket; empty when they cannot be seen."""
    return sockets.owners(port, (int(p) for p in os.listdir("/proc") if p.isdigit()))


def _behind_proxy(pid: int, port: int, servers: Sequence[Server]) -> Server | None:
    """The server behind Docker's userland proxy, which listens on the host for a published port."""
    args = procfs.arguments(pid)
    if not args or os.path.basename(args[0]) != "docker-proxy":
        return None
    given = dict(itertools.pairwise(args))
    inner, address = given.get("-container-port"), given.get("-container-ip", "")
    if inner is None or given.get("-host-port") != str(port):
        return None
    fits = [s for s in servers if not s.own_network and s.port == int(inner)]
    exact = [s for s in fits if address and address in (procfs.read(f"/proc/{s.pid}/net/fib_trie") or "")]
    chosen = exact or fits
    return chosen[0] if len(chosen) == 1 else None
