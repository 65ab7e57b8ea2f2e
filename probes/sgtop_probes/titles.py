"""Process titles of SGLang.

``sglang::scheduler`` and, in this order, of what the server has more than one of: ``_DP0_PP0_ATTN_CP0_MOE_DP0_TP0_EP0``
(``configure_scheduler_process`` in managers/scheduler.py; the same in 0.5.12.post1, 0.5.16, 0.5.20 and 0.5.23).
``sglang::detokenizer``, ``sglang::detokenizer_router``, ``sglang::tokenizer_worker:PID``,
``sglang::data_parallel_controller``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ROLES = {
    "detokenizer": "detokenizer",
    "detokenizer_router": "detokenizer-router",
    "data_parallel_controller": "dp-controller",
    "tokenizer_worker": "tokenizer-worker",
}
_RANK = re.compile(r"_((?:ATTN_|MOE_)?(?:DP|PP|CP|TP|EP))(\d+)")
_SHOWN = ("DP", "PP", "ATTN_CP", "TP")
"""Axes that tell two schedulers apart; EP and MOE_DP follow from them."""


@dataclass(frozen=True)
class Title:
    """``role``: scheduler, detokenizer, detokenizer-router, dp-controller, tokenizer-worker; ``ranks``: axis → rank."""

    role: str
    ranks: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``TP0`` where the title names no rank."""
        return label(self.ranks)


def label(ranks: Mapping[str, int]) -> str:
    """``DP1 PP0 TP3`` from axis → rank."""
    return " ".join(f"{axis}{ranks[axis]}" for axis in _SHOWN if axis in ranks) or "TP0"


def parse(text: str) -> Title | None:
    """The title of an SGLang process, None for any other."""
    if not text.startswith("sglang::"):
        return None
    name = text[len("sglang::") :].strip()
    if name.startswith("schedul"):  # comm holds 15 characters only: sglang::schedul
        return Title("scheduler", {axis: int(rank) for axis, rank in _RANK.findall(name)})
    for start in sorted(_ROLES, key=len, reverse=True):
        if name.startswith(start) or (len(name) == 7 and start.startswith(name)):
            return Title(_ROLES[start])
    return None
