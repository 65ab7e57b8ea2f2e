"""Ranks that make no steps: whether their process was stopped, and what their main thread is doing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sgtop_core.live.about import innermost
from sgtop_core.live.orders import COMMAND_TIMEOUT_S, Order, Orders
from sgtop_core.model.model import Model

ASK_AGAIN_NS = 5_000_000_000


class HungRanks:
    """``look`` is called by the session's thread; ``stopped`` tells of a pid whether a signal stopped it."""

    def __init__(self, model: Model, orders: Orders, stopped: Callable[[int], bool]) -> None:
        self._model, self._orders, self._stopped = model, orders, stopped
        self._next_ask = 0

    def look(self, now: int) -> None:
        """Ask a rank that makes no steps what its main thread is doing. ``now`` in ns."""
        hung = self._model.hung(now)
        for label, state in hung:
            slot = self._model.slots[label]
            slot.stopped = state == "silent" and slot.pid is not None and self._stopped(slot.pid)
        if not hung or now < self._next_ask:
            return
        self._next_ask = now + ASK_AGAIN_NS
        for label, state in hung:
            if state == "silent":
                continue  # its agent cannot answer
            order = self._orders.queue(label, "where", {})
            threading.Thread(target=self._place, args=(label, order), name="sgtop-where", daemon=True).start()

    def _place(self, label: str, order: Order) -> None:
        if order.done.wait(COMMAND_TIMEOUT_S) and order.reply.get("ok"):
            slot = self._model.slots.get(label)
            if slot is not None:
                slot.where = innermost(order.reply.get("result"))
