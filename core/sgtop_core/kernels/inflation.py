"""What kernel tracing costs: step time inside against outside the tracing windows, at equal batch sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sgtop_core.model.arrays import I64

MIN_STEPS = 8
"""Steps on either side before a batch size counts."""


def inflation(code: I64, bs: I64, t0: I64, length: I64, windows: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Mode code → median step time inside ÷ outside; batch sizes weigh by their steps inside.

    Args:
        code: mode of each step.
        bs: its batch size.
        t0: its start, ns.
        length: from its start to the next step's, ns.
        windows: traced stretches (ns), in order and disjoint. Steps that cross an edge count on neither side.
    """
    if not len(code) or not windows:
        return {}
    begin = np.array([w[0] for w in windows], np.int64)
    finish = np.array([w[1] for w in windows], np.int64)
    end = t0 + length
    i = np.searchsorted(begin, t0, side="right") - 1
    inside = (i >= 0) & (end <= finish[np.maximum(i, 0)])
    after = (i < 0) | (t0 >= finish[np.maximum(i, 0)])
    following = np.append(begin, np.iinfo(np.int64).max)[i + 1]
    outside = after & (end <= following)
    out = {}
    for c in np.unique(code):
        ratios, weights = [], []
        for b in np.unique(bs[(code == c) & inside]):
            mine = (code == c) & (bs == b)
            a, z = length[mine & inside], length[mine & outside]
            if len(a) >= MIN_STEPS and len(z) >= MIN_STEPS:
                ratios.append(float(np.median(a)) / max(float(np.median(z)), 1.0))
                weights.append(len(a))
        if ratios:
            out[int(c)] = float(np.average(ratios, weights=weights))
    return out
