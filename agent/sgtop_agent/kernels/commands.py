"""The operations ``kernels`` and ``kernel_names`` of the wire."""

from __future__ import annotations

from typing import Any

from ..ops import LATER, Call, OpError, Ops
from .control import KernelControl


def register(ops: Ops, control: KernelControl) -> None:
    """Add both operations. The reply to ``kernels`` carries the ring's read-only descriptor once there is a ring."""

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

    ops.register("kernels", kernels)
    ops.register("kernel_names", kernel_names)
