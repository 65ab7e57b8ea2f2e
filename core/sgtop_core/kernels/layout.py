"""Layouts of CUPTI's activity records, as far as sgtop reads them.

Source: the headers of nvidia-cuda-cupti 12.0 to 13.5. Every kernel record (kind 10) begins with the same 208 bytes,
memory copies (1) and sets (2) with the same 88; only the tails grow, so a layout is its strides. The helper measures
the strides on the running CUPTI and writes them into the ring's header.
"""

from __future__ import annotations

import numpy as np

MEMCPY, MEMSET, KERNEL = 1, 2, 10

KERNEL_FIELDS: dict[str, tuple[str, int]] = {
    "kind": ("<u4", 0),
    "start": ("<u8", 16),
    "end": ("<u8", 24),
    "device": ("<u4", 40),
    "stream": ("<u4", 48),
    "name": ("<u8", 104),
    "graph": ("<u4", 156),
}
MEMORY_FIELDS: dict[str, tuple[str, int]] = {
    "kind": ("<u4", 0),
    "copy": ("u1", 4),
    "bytes": ("<u8", 8),
    "start": ("<u8", 16),
    "end": ("<u8", 24),
    "device": ("<u4", 32),
    "stream": ("<u4", 40),
    "graph": ("<u4", 72),
}
"""Of both memcpy and memset; ``copy`` (CUpti_ActivityMemcpyKind) is part of the value in a memset."""

PREFIX = {KERNEL: 208, MEMCPY: 88, MEMSET: 88}
"""Bytes that no version has changed."""

STRIDES: dict[str, dict[int, int]] = {
    "12.0": {KERNEL: 208, MEMCPY: 88, MEMSET: 88},
    "12.8": {KERNEL: 208, MEMCPY: 96, MEMSET: 88},
    "13.0": {KERNEL: 216, MEMCPY: 96, MEMSET: 88},
    "13.1": {KERNEL: 224, MEMCPY: 96, MEMSET: 88},
    "13.3": {KERNEL: 232, MEMCPY: 96, MEMSET: 88},
    "13.4": {KERNEL: 248, MEMCPY: 112, MEMSET: 104},
}
"""CUDA version → strides, from that version on to the next in the table."""

COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind as nsys abbreviates it."""


class LayoutError(ValueError):
    """Strides that cannot be records of these kinds."""


def dtypes(strides: dict[int, int]) -> dict[int, np.dtype[np.void]]:
    """Record types of numpy by kind, ``itemsize`` being the stride.

    Raises:
        LayoutError: a stride shorter than the fields need, or not a multiple of 8.
    """
    out = {}
    for kind in (KERNEL, MEMCPY, MEMSET):
        n = strides.get(kind, 0)
        if n < PREFIX[kind] or n % 8 or n > 1024:
            raise LayoutError(f"records of kind {kind} cannot be {n} bytes long")
        fields = KERNEL_FIELDS if kind == KERNEL else MEMORY_FIELDS
        out[kind] = np.dtype(
            {
                "names": list(fields),
                "formats": [f for f, _ in fields.values()],
                "offsets": [at for _, at in fields.values()],
                "itemsize": n,
            }
        )
    return out
