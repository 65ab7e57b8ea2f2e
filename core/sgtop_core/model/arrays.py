"""The array types of the model and the few vector operations that several of its modules share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

EMPTY: I64 = np.zeros(0, np.int64)
EMPTY.flags.writeable = False


def ranges(first: I64, last: I64) -> tuple[I64, I64]:
    """Every integer of each half-open range, flattened.

    Returns:
        ``(which, value)``: the index of the range and the integer, ranges in order. Empty ranges give nothing.
    """
    n = np.maximum(last - first, 0)
    total = int(n.sum())
    which = np.repeat(np.arange(len(n)), n)
    start = np.cumsum(n) - n
    return which, np.arange(total) - start[which] + first[which]


def split(t0: I64, t1: I64, width: int) -> tuple[I64, I64, I64, I64]:
    """Cut intervals at the multiples of ``width`` (ns).

    Returns:
        ``(which, cell, a, b)``: index of the interval, number of the cell (``a // width``), start and end of the piece.
        Intervals of no length give nothing.
    """
    first = t0 // width
    last = (t1 - 1) // width + 1
    if len(t0) and bool(np.all(last - first == 1)):  # the common case: nothing crosses a border
        return np.arange(len(t0)), first, t0, t1
    which, cell = ranges(first, np.where(t1 > t0, last, first))
    a = np.maximum(t0[which], cell * width)
    b = np.minimum(t1[which], (cell + 1) * width)
    return which, cell, a, b
