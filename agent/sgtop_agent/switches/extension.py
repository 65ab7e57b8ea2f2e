"""The switches' door in the agent: operations whose code is loaded when a client first wants them."""

from __future__ import annotations

from typing import Any

OPS = ("list", "plan", "open", "join", "flip", "keep", "back")


def setup(agent: Any) -> None:
    """Add the operations ``switch.*`` and ``action.*`` to a ``serve.Agent`` whose hooks have just gone on."""

    def first(call: Any) -> Any:
        from . import commands

        commands.start(agent)  # replaces the operations
        agent.ops.run(call)
        return commands.LATER

    for name in (*(f"switch.{op}" for op in OPS), "action.pin", "action.priority", "action.undo"):
        agent.ops.register(name, first)
