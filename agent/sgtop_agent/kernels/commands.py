"""The operations ``kernels`` and ``kernel_names`` of the wire, and kernel tracing's place in the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ops import LATER, Call, OpError
from .control import TICK_NS, KernelControl

if TYPE_CHECKING:
    from ..serve import Agent

__all__ = ["LATER", "start"]


def start(agent: Agent) -> KernelControl:
    """Kernel tracing for as long as this agent's hooks are on.

    The reply to ``kernels`` carries the ring's read-only descriptor once there is a ring.
    """
    control = KernelControl(agent)

    def kernels(call: Call) -> Any:
        try:
            state = control.command(id(call.client), call.args)
        except ValueError as e:
            raise OpError(str(e))
        fd = control.reader_fd()
        state.pop("k")
        call.done({**state, "ring": fd is not None}, () if fd is None else (fd,))
        return LATER

    def kernel_names(call: Call) -> dict[str, Any]:
        pointers = call.args.get("pointers")
        if not isinstance(pointers, list):
            raise OpError("kernel_names: pointers must be a list of integers")
        return {"names": control.names(pointers)}

    agent.ops.register("kernels", kernels)
    agent.ops.register("kernel_names", kernel_names)
    agent.every(TICK_NS, control.tick, lambda: control.active)
    agent.on_client_gone(lambda client: control.gone(id(client)))
    agent.on_undo(control.close)
    return control
