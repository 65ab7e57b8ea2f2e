"""To what the times of agent frames are rounded, by the model and by recordings alike; see ``recording.quantise``."""

from __future__ import annotations

from collections.abc import Mapping

from sgtop_core.model.arrays import I64

TIME_NS = 1_000
HOOK_NS = 100
AGE_NS = 1_000_000

UNITS: Mapping[str, Mapping[str, int]] = {
    "step": {"t0": TIME_NS, "t1": TIME_NS, "hook_ns": HOOK_NS},
    "forward": {"t0": TIME_NS, "t1": TIME_NS, "gpu0": TIME_NS, "gpu1": TIME_NS, "gpu2": TIME_NS},
    "stage": {"t0": TIME_NS, "t1": TIME_NS},
    "gc": {"t0": TIME_NS, "t1": TIME_NS},
    "result": {"t": TIME_NS},
    "queue": {"t": TIME_NS, "oldest_ns": AGE_NS},
}
"""Table → column → ns to which its values are rounded; columns that are not named stay as they are."""


def rounded(v: I64, unit: int) -> I64:
    """To the nearest multiple of ``unit``; -1 (unknown) stays."""
    r: I64 = (v + unit // 2) // unit * unit
    r[v == -1] = -1
    return r
