"""What a session says about its server and about itself, from what it has learnt so far. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sgtop_probes import discovery

from sgtop_core.model.model import Model
from sgtop_core.model.snapshot import Attach, Server


def from_processes(server: discovery.Server) -> Server:
    """What the command line and the process titles say."""
    args = server.args
    return Server(
        port=server.port,
        model=args.served_name or args.model,
        sglang_version=None,
        tp=args.tp,
        dp=args.dp,
        pp=args.pp,
        ep=args.ep,
        host=server.host if server.host not in ("0.0.0.0", "::", "*") else "127.0.0.1",
        pid=server.pid,
        ranks_elsewhere=tuple(r.label for r in server.ranks if r.pid is None),
    )


def from_info(s: Server, info: Mapping[str, Any]) -> Server:
    """``s`` with what is still missing filled from ``/server_info``."""
    return replace(
        s,
        model=s.model or _text(info.get("served_model_name") or info.get("model_path")),
        sglang_version=s.sglang_version or _text(info.get("version")),
        tp=s.tp or number(info.get("tp_size")),
        dp=s.dp or number(info.get("dp_size")),
        pp=s.pp or number(info.get("pp_size")),
        ep=s.ep or number(info.get("ep_size")),
        device=s.device or _text(info.get("device")),
    )


def from_hello(s: Server, hello: Mapping[str, Any]) -> Server:
    """``s`` with what an agent's hello says, which knows best."""
    rank = hello.get("rank")
    sizes = rank if isinstance(rank, Mapping) else {}
    return replace(
        s,
        model=_text(hello.get("model")) or s.model,
        sglang_version=_text(hello.get("sglang")) or s.sglang_version,
        tp=number(sizes.get("tp_size")) or s.tp,
        dp=number(sizes.get("dp_size")) or s.dp,
        pp=number(sizes.get("pp_size")) or s.pp,
        ep=number(sizes.get("ep_size")) or s.ep,
        device=_text(hello.get("device")) or s.device,
    )


def as_a_whole(model: Model, ways: Sequence[str], outside: str, now: int) -> Attach:
    """State of the connection: the worst that a user has to know, and in words why.

    ``ways``: of the connections that stand; ``outside``: what HTTP does not give, in words; ``now`` in ns.
    """
    slots = model.slots
    if not slots:
        return Attach(None, "starting", "the server has no scheduler: it is starting, or about to end")
    if ways:
        hung = model.hung(now)
        if hung and len(hung) == len(ways):
            return Attach(ways[0], "hung", model.why_hung(now))
        others = [f"{name}: {s.message or s.status}" for name, s in slots.items() if s.status != "live"]
        return Attach(ways[0], "live", "; ".join(others))
    for state in ("agentless", "hung", "starting", "lost"):
        why = [s.message for s in slots.values() if s.status == state]
        if why:
            way, extra = ("agentless", outside) if state == "agentless" else (None, "")
            return Attach(way, state, "; ".join(x for x in (why[0], extra) if x))
    return Attach(None, "connecting", next((s.message for s in slots.values() if s.message), ""))


def innermost(where: Any) -> str:
    """The frame that the main thread is in, from the reply to ``where`` (innermost first)."""
    stack = where.get("stack") if isinstance(where, Mapping) else None
    return str(stack[0]) if isinstance(stack, (list, tuple)) and stack else ""


def number(v: Any) -> int | None:
    """A whole number, None for anything else."""
    return v if isinstance(v, int) and not isinstance(v, bool) else None


def _text(v: Any) -> str | None:
    return v if isinstance(v, str) and v else None
