"""Kernel tracing's door in the agent: two operations whose code is loaded when a client first wants them."""

from __future__ import annotations

from typing import Any


def setup(agent: Any) -> None:
    """Add the operations ``kernels`` and ``kernel_names`` to a ``serve.Agent`` whose hooks have just gone on."""

    def first(call: Any) -> Any:
        from . import commands

        commands.start(agent)  # replaces both operations
        agent.ops.run(call)
        return commands.LATER

    agent.ops.register("kernels", first)
    agent.ops.register("kernel_names", first)
