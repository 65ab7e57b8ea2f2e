"""Kernel names: C strings at addresses that CUPTI reported, read so that a stale address cannot hurt."""

from __future__ import annotations

import os
from collections.abc import Iterable

MAX_NAME = 8192
"""Bytes; CUTLASS's names reach some thousands."""
MAX_POINTERS = 512
"""Names resolved a call; a client asks again for the rest."""
_CHUNK = 256


def _read(fd: int, address: int) -> str | None:
    out = bytearray()
    while len(out) < MAX_NAME:
        try:
            part = os.pread(fd, _CHUNK - (address + len(out)) % _CHUNK, address + len(out))
        except (OSError, OverflowError):
            return None  # not mapped: the module that held the name was unloaded
        if not part:
            return None
        end = part.find(0)
        if end >= 0:
            out += part[:end]
            return out.decode("utf-8", "replace")
        out += part
    return out.decode("utf-8", "replace")


def resolve(pointers: Iterable[int]) -> dict[int, str | None]:
    """Name by pointer; None where there is no readable string. At most ``MAX_POINTERS`` of them.

    ``/proc/self/mem`` answers an unmapped address with an error where a pointer read would kill the server.
    """
    out: dict[int, str | None] = {}
    try:
        fd = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return dict.fromkeys(list(pointers)[:MAX_POINTERS])
    try:
        for pointer in pointers:
            if len(out) >= MAX_POINTERS:
                break
            out[pointer] = _read(fd, pointer) if 0 < pointer < 1 << 63 else None
    finally:
        os.close(fd)
    return out
