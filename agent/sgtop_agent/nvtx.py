"""``--nvtx``: the steps as NVTX ranges, so that an nsys the user started sees them.

Labels are those of SGLang's own step spans: ``step[DECODE bs=32]``, ``step[EXTEND bs=2 toks=512]``. torch is
taken from ``sys.modules``; without a CUDA build of it there are no ranges.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def label(mode: str, bs: int, tokens: int) -> str:
    """A step's label, as SGLang's ``build_step_span_name`` writes it."""
    if mode == "EXTEND":
        return f"step[EXTEND bs={bs} toks={tokens}]"
    return f"step[{mode} bs={bs}]"


class Ranges:
    """Pushes and pops on the main thread. ``on`` is what the user asked for; ``depth`` what is open."""

    __slots__ = ("_nvtx", "depth", "names", "on")

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = dict(names)
        self.on = False
        self.depth = 0
        self._nvtx: Any = None

    def switch(self, on: bool) -> str | None:
        """Turn ranges on or off; agent's thread. Returns why it cannot be, in words."""
        if on and self._nvtx is None:
            torch = sys.modules.get("torch")
            nvtx = getattr(getattr(torch, "cuda", None), "nvtx", None)
            if nvtx is None:
                return "torch.cuda.nvtx is not there"
            available = getattr(torch.cuda, "is_available", None) if torch is not None else None
            if available is None or not available():
                return "torch has no CUDA device here: NVTX ranges need one"
            self._nvtx = nvtx
        self.on = on
        return None

    def push(self, scalars: tuple[int, int, int, int, int]) -> None:
        """Open the range of a step."""
        mode, bs, tokens, _, _ = scalars
        self._nvtx.range_push(label(self.names.get(mode, str(int(mode))), bs, tokens))
        self.depth += 1

    def pop(self) -> None:
        """Close the innermost range."""
        self.depth -= 1
        self._nvtx.range_pop()
