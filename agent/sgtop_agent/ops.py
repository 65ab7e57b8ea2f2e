"""Commands that a client may send: a registry of operations, and the answer to one call.

An operation gets a ``Call`` on the agent's thread. It returns its result (a map, or None), raises ``OpError``
with the reason in words, or returns ``LATER`` and answers the call itself when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .wire import WHO_LENGTH

if TYPE_CHECKING:
    from .clients import Client

LATER = object()


class OpError(Exception):
    """Why an operation was not done, in words for the user."""


class Call:
    """One command of one client. ``done`` or ``fail`` answers it, once; both on the agent's thread."""

    def __init__(self, client: Client, call_id: Any, op: str, args: dict[str, Any]) -> None:
        self.client, self.id, self.op, self.args = client, call_id, op, args
        self.answered = False

    @property
    def who(self) -> str:
        """Who asks, as the client says it; who may connect at all was settled before."""
        return str(self.args.get("who") or self.client.label)[:WHO_LENGTH]

    def done(self, result: dict[str, Any] | None = None, fds: Sequence[int] = ()) -> None:
        """Answer with a result; ``fds`` travel with the frame (SCM_RIGHTS) and stay open here."""
        self._answer({"k": "reply", "id": self.id, "ok": True, "result": result or {}}, fds)

    def fail(self, why: str) -> None:
        """Answer with the reason in words."""
        self._answer({"k": "reply", "id": self.id, "ok": False, "error": why}, ())

    def _answer(self, frame: dict[str, Any], fds: Sequence[int]) -> None:
        if not self.answered:
            self.answered = True
            self.client.send(frame, fds)


Handler = Callable[[Call], Any]


class Ops:
    """Name → handler."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def register(self, name: str, handler: Handler) -> None:
        """Add an operation; a later one of the same name replaces it."""
        self._handlers[name] = handler

    def run(self, call: Call) -> None:
        """Run a call and answer it; never raises."""
        handler = self._handlers.get(call.op)
        if handler is None:
            call.fail(f"this agent knows no operation {call.op!r}; it knows {', '.join(sorted(self._handlers))}")
            return
        try:
            result = handler(call)
        except OpError as error:
            call.fail(str(error))
        except Exception as error:
            call.fail(f"{call.op} failed: {type(error).__name__}: {error}")
        else:
            if result is not LATER:
                call.done(result)
