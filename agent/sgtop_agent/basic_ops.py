"""The operations that every agent knows: ``detach``, ``nvtx``, ``where``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from . import find
from .ops import LATER, Call, OpError

if TYPE_CHECKING:
    from .serve import Agent


def register(agent: Agent) -> None:
    """Add them to ``agent.ops``."""

    def detach(call: Call) -> Any:
        call.done()
        agent.post(lambda: agent.dismiss(call.client, "detached"))
        return LATER

    def nvtx(call: Call) -> dict[str, Any]:
        on = call.args.get("on")
        if not isinstance(on, bool):
            raise OpError("nvtx: on must be true or false")
        if agent.hooks is None:
            raise OpError("nvtx: no hooks are on")
        problem = agent.hooks.ranges.switch(on)
        if problem:
            raise OpError(f"nvtx: {problem}")
        return {"on": on}

    def where(call: Call) -> dict[str, Any]:
        found = agent.hooks.found if agent.hooks is not None else find.find()
        if found is None:
            raise OpError("where: no scheduler was found")
        stack = find.where(found.ident)
        return {"stack": stack, "ct": int(found.scheduler.forward_ct), "t": time.monotonic_ns()}

    agent.ops.register("detach", detach)
    agent.ops.register("nvtx", nvtx)
    agent.ops.register("where", where)
