"""``sgtop list``: the SGLang servers of this machine, one a line."""

from __future__ import annotations

import argparse
import json
import pwd
from typing import TYPE_CHECKING, Any

from . import exit_codes, options

if TYPE_CHECKING:
    from sgtop_probes.discovery import Server

HEAD = ("SERVER", "STATE", "MODEL", "RANKS", "PID", "USER", "CONTAINER")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``sgtop list``."""
    parser = subparsers.add_parser(
        "list", help="the servers found on this machine", description="Lists the SGLang servers of this machine."
    )
    options.add_json(parser, "one JSON array, an object a server")


def run(args: argparse.Namespace) -> int:
    """Print them; 3 when there is none."""
    from sgtop_probes.discovery import find_servers

    servers = find_servers()
    if args.json:
        print(json.dumps([as_json(s) for s in servers], indent=2))
        return exit_codes.OK if servers else exit_codes.NO_SERVER
    if not servers:
        from sgtop_probes.discovery import resolve

        resolve(None)  # raises, in words, why nothing was found
    rows = [HEAD, *(_row(s) for s in servers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return exit_codes.OK


def _row(server: Server) -> tuple[str, ...]:
    return (
        server.name,
        server.state,
        server.args.served_name or server.args.model or "?",
        ranks(server),
        str(server.pid),
        _user(server.uid),
        server.container or "-",
    )


def ranks(server: Server) -> str:
    """``TP0 TP1 (+TP2 TP3 elsewhere)``."""
    here = " ".join(
        r.label.replace(" ", "/") + (" [stopped]" if r.state == "stopped" else "") for r in server.ranks if r.pid
    )
    away = " ".join(r.label.replace(" ", "/") for r in server.ranks if r.pid is None)
    return (here or "-") + (f" (not on this host: {away})" if away else "")


def _user(uid: int | None) -> str:
    if uid is None:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def as_json(server: Server) -> dict[str, Any]:
    """One server; what is not known is null."""
    args = server.args
    return {
        "target": server.name,
        "pid": server.pid,
        "host": server.host,
        "port": server.port,
        "url": server.url,
        "state": server.state,
        "model": args.served_name or args.model,
        "tp": args.tp,
        "pp": args.pp,
        "dp": args.dp,
        "ep": args.ep,
        "nnodes": args.nnodes,
        "node_rank": args.node_rank,
        "uid": server.uid,
        "container": server.container,
        "same_network": server.own_network,
        "ranks": [
            {"rank": r.label, "pid": r.pid, "tp": r.tp, "pp": r.pp, "dp": r.dp, "ep": r.ep, "state": r.state}
            for r in server.ranks
        ],
        "helpers": [{"role": h.role, "pid": h.pid} for h in server.helpers],
    }
