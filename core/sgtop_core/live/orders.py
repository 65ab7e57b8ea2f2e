"""Orders to the agents: queued by any thread, sent and answered on the session's, and the last one, to detach."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgtop_agent import wire
from sgtop_probes.client import ConnectionLost

from sgtop_core.live.kernel_feed import OPS as KERNEL_OPS
from sgtop_core.live.kernel_feed import KernelFeed
from sgtop_core.live.link import Link

COMMAND_TIMEOUT_S = 5.0
DETACH_S = 0.6
"""Longest wait for the agents to say that they have undone everything."""
_READ_ONLY_OPS = frozenset({"where", "detach", "nvtx", "kernels", "kernel_names", "switch.list", "switch.plan"})
"""Operations that look, or change only sgtop's own hooks; ``--readonly`` refuses all others."""


@dataclass(slots=True)
class Order:
    """A command on its way to an agent and back."""

    label: str
    op: str
    args: Mapping[str, Any]
    done: threading.Event = field(default_factory=threading.Event)
    reply: Mapping[str, Any] = field(default_factory=lambda: {"ok": False, "error": "not answered"})
    fds: Sequence[int] = ()
    """Descriptors to send along; they stay the caller's."""
    came: list[int] = field(default_factory=list)
    """Descriptors that came with the reply; the caller closes them."""

    def fail(self, error: str) -> None:
        """Answer it with ``error``."""
        self.reply = {"ok": False, "error": error}
        self.done.set()


class Orders:
    """What the session asks of its agents. ``links``: the session's own, by label of the rank.

    ``wake`` makes the session's thread come by soon, which then calls ``send``.
    """

    def __init__(
        self, links: Mapping[str, Link], kernels: KernelFeed, readonly: bool, wake: Callable[[], None]
    ) -> None:
        self._links, self._kernels = links, kernels
        self._readonly, self._wake = readonly, wake
        self._queue: deque[Order] = deque()
        self._sent: dict[tuple[str, int], Order] = {}
        """(label of the rank, id on the wire) → what waits for its reply"""
        self._ids = itertools.count(1)

    # --- any thread -------------------------------------------------------------------------------------

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the agent of ``rank`` (None: of every rank) to do ``op``; waits up to 5 s.

        Returns:
            ``{"ok": bool, "result" | "error": …}``; for every rank the result is a map by label.
        """
        refused = self._refusal(op)
        if refused:
            return {"ok": False, "error": refused}
        labels = [rank] if rank is not None else [label for label, k in self._links.items() if k.connection]
        if not labels:
            return {"ok": False, "error": "no rank has an agent"}
        orders = [self.queue(label, op, args) for label in labels]
        self._wake()
        end = time.monotonic() + COMMAND_TIMEOUT_S
        for o in orders:
            if not o.done.wait(max(end - time.monotonic(), 0.0)):
                o.reply = {"ok": False, "error": _no_answer(o.label)}
        if rank is not None:
            return orders[0].reply
        bad = [f"{o.label}: {o.reply.get('error')}" for o in orders if not o.reply.get("ok")]
        result = {o.label: o.reply.get("result") for o in orders}
        return {"ok": not bad, "result": result, **({"error": "; ".join(bad)} if bad else {})}

    def ask(
        self, rank: str, op: str, args: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> tuple[Mapping[str, Any], list[int]]:
        """One command to the agent of ``rank``, with descriptors both ways; those that come are the caller's."""
        refused = self._refusal(op)
        if refused:
            return {"ok": False, "error": refused}, []
        order = self.queue(rank, op, args, fds)
        self._wake()
        if not order.done.wait(COMMAND_TIMEOUT_S):
            return {"ok": False, "error": _no_answer(rank)}, []
        return order.reply, order.came

    def queue(self, label: str, op: str, args: Mapping[str, Any], fds: Sequence[int] = ()) -> Order:
        """Have ``op`` sent at the next ``send``; refuses nothing, waits for nothing."""
        order = Order(label, op, args, fds=fds)
        self._queue.append(order)
        return order

    def _refusal(self, op: str) -> str:
        if self._readonly and op not in _READ_ONLY_OPS:
            return f"refused: sgtop runs with --readonly, and {op} changes the server"
        return ""

    # --- the session's thread ---------------------------------------------------------------------------

    def send(self) -> None:
        """Send what is queued; what has no agent to go to is answered at once."""
        while self._queue:
            order = self._queue.popleft()
            link = self._links.get(order.label)
            if link is None or link.connection is None:
                order.fail(f"{order.label} has no agent")
                continue
            number = next(self._ids)
            self._sent[order.label, number] = order
            if order.op == "kernels":
                self._kernels.asked_by_user(order.label, order.args)
            frame = _frame(number, order.op, order.args)
            try:
                if order.fds:
                    link.connection.send(frame, order.fds)
                else:
                    link.connection.send(frame)
            except (ConnectionLost, wire.WireError) as e:
                del self._sent[order.label, number]
                order.fail(str(e))

    def answered(self, label: str, frame: wire.Frame) -> None:
        """A ``reply`` frame from the agent of ``label``; one that nobody waits for is passed over."""
        number = frame.get("id")
        order = self._sent.pop((label, number), None) if isinstance(number, int) else None
        if order is None:
            return
        order.reply = {k: v for k, v in frame.items() if k in ("ok", "result", "error")}
        fds = getattr(self._links[label].connection, "fds", None)
        if order.op == "switch.open" and order.reply.get("ok") and fds:
            order.came.append(fds.popleft())
        if order.op in KERNEL_OPS:
            self._kernels.reply(label, order.op, order.reply, fds if fds is not None else deque())
        order.done.set()

    def lost(self, label: str, why: str) -> None:
        """The agent of ``label`` has gone: what it was asked stays undone."""
        for key in [k for k in self._sent if k[0] == label]:
            self._sent.pop(key).fail(why)

    def detach(self) -> None:
        """Ask every agent to undo everything, wait a moment for it to say so, and close every link."""
        open_links = [k for k in self._links.values() if k.connection is not None]
        for link in open_links:
            assert link.connection is not None
            try:
                link.connection.send(_frame(next(self._ids), "detach", {}))
            except (ConnectionLost, wire.WireError):
                link.close()
        end = time.monotonic() + DETACH_S
        while open_links and time.monotonic() < end:
            for link in list(open_links):
                try:
                    if link.connection is None or any(f["k"] == "bye" for f in link.connection.receive()):
                        open_links.remove(link)
                except (ConnectionLost, wire.WireError):
                    open_links.remove(link)
            if open_links:
                time.sleep(0.005)
        for link in self._links.values():
            link.close()

    def release(self) -> None:
        """Nobody will answer any more: let go whoever waits."""
        for order in [*self._queue, *self._sent.values()]:
            order.done.set()


def _frame(number: int, op: str, args: Mapping[str, Any]) -> wire.Frame:
    return {"k": "cmd", "id": number, "op": op, "args": dict(args)}


def _no_answer(label: str) -> str:
    return f"{label} did not answer within {COMMAND_TIMEOUT_S:.0f} s"
