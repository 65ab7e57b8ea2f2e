"""Made-up CUPTI buffers, built byte by byte from the offsets of the headers: not with the code under test."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LAYOUTS = {
    # cuptiGetVersion(), bytes of a kernel, memcpy and memset record
    "12.4": (22, 208, 88, 88),
    "12.8": (26, 208, 96, 88),
    "13.0": (130001, 216, 96, 88),
    "13.2": (130202, 224, 96, 88),
    "13.4": (130401, 248, 112, 104),
}


@dataclass(frozen=True)
class Rec:
    """One record: kind 10, 1 or 2."""

    kind: int
    start: int
    end: int
    stream: int = 7
    name: int = 0x1000
    graph: int = 0
    bytes: int = 0
    copy: int = 1


def strides(layout: str) -> dict[int, int]:
    _, kernel, memcpy, memset = LAYOUTS[layout]
    return {10: kernel, 1: memcpy, 2: memset}


def pack(records: Iterable[Rec], layout: str = "13.0") -> bytes:
    """The bytes of a buffer. What lies between the known fields is filled with a pattern that no field may read."""
    size = strides(layout)
    out = bytearray()
    for r in records:
        b = bytearray(b"\xa5" * size[r.kind])
        struct.pack_into("<I", b, 0, r.kind)
        struct.pack_into("<QQ", b, 16, r.start, r.end)
        if r.kind == 10:
            struct.pack_into("<III", b, 40, 0, 1, r.stream)
            struct.pack_into("<Q", b, 104, r.name)
            struct.pack_into("<I", b, 156, r.graph)
        else:
            b[4] = r.copy
            struct.pack_into("<Q", b, 8, r.bytes)
            struct.pack_into("<III", b, 32, 0, 1, r.stream)
            struct.pack_into("<I", b, 72, r.graph)
        out += b
    return bytes(out)


def name_code(r: Rec) -> int:
    """What ``parse.Records.name`` holds for the record."""
    if r.kind == 10:
        return r.name
    return -((r.kind << 8) | (r.copy if r.kind == 1 else 0))


def kernels(starts: Sequence[int], duration: int, **more: int) -> list[Rec]:
    return [Rec(10, s, s + duration, **more) for s in starts]
