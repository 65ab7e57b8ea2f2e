"""What kernel tracing costs: step time inside the tracing windows against just before and after, at equal batch sizes.

Steps get longer as contexts grow: on an endless decode by 3 % in 10 s, more than tracing costs. A window is therefore
compared with as much time on *both* sides of it, so that a steady drift cancels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sgtop_core.model.arrays import I64

MIN_STEPS = 8
"""Steps inside, before and after before a batch size counts."""


def inflation(code: I64, bs: I64, t0: I64, length: I64, windows: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Mode code → median step time inside ÷ the mean of those before and after; by the steps inside over all windows.

    Args:
        code: mode of each step.
        bs: its batch size.
        t0: its start, ns.
        length: from its start to the next step's, ns.
        windows: traced stretches (ns), in order and disjoint. Steps that cross an edge count on neither side.
    """
    ratios: dict[int, list[float]] = {}
    weights: dict[int, list[int]] = {}
    edges = [-(1 << 62), *(t for w in windows for t in w), 1 << 62]
    for i, (a, b) in enumerate(windows):
        span = b - a
        sides = ((a, b), (max(edges[2 * i], a - span), a), (b, min(edges[2 * i + 3], b + span)))
        within = [(t0 >= lo) & (t0 + length <= hi) for lo, hi in sides]
        for key in {*zip(code[within[0]].tolist(), bs[within[0]].tolist(), strict=True)}:
            same = (code == key[0]) & (bs == key[1])
            inside, before, after = (length[same & side] for side in within)
            if min(len(inside), len(before), len(after)) >= MIN_STEPS:
                outside = (float(np.median(before)) + float(np.median(after))) / 2
                ratios.setdefault(key[0], []).append(float(np.median(inside)) / max(outside, 1.0))
                weights.setdefault(key[0], []).append(len(inside))
    return {c: float(np.average(r, weights=weights[c])) for c, r in ratios.items()}
