"""A client's hello: why one is not let in, and what it is told when it is."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any

from . import __version__, describe, wire
from .find import Found
from .hooks import Hooks


def token_of(frame: wire.Frame) -> str:
    """The token that a client's hello carries, "" for none."""
    token = frame.get("token")
    return token if isinstance(token, str) else ""


def refusal(frame: wire.Frame, tokens: Iterable[str]) -> str:
    """Why the client that sent this hello is not served, "" when it may be. ``tokens``: any of them will do."""
    given = token_of(frame)
    if not any(hmac.compare_digest(given.encode(), known.encode()) for known in tokens):
        return "wrong token"
    if frame.get("proto") != wire.PROTOCOL:
        return f"this agent speaks protocol {wire.PROTOCOL}, the client {frame.get('proto')!r}"
    return ""


def hello(hooks: Hooks, found: Found, way: str, token: str) -> dict[str, Any]:
    """The agent's own hello, ``wire.HELLO_AGENT``. ``token``: the client's, given back to it."""
    return {
        "k": "hello",
        "proto": wire.PROTOCOL,
        "agent": __version__,
        "way": way,
        "token": token,
        "caps": hooks.caps,
        "stages": list(wire.STAGES),
        **describe.hello(hooks.scheduler, found.loop, found.tid, hooks.modes),
    }


def warnings(hooks: Hooks) -> list[str]:
    """What a client has to know from the start: hooks that are off, and why."""
    nvtx = [f"--nvtx: {hooks.nvtx_problem}"] if hooks.nvtx_problem else []
    return nvtx + [f"hook {hook} is off: {why}" for hook, why in hooks.off().items()]
