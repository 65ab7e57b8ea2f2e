"""The wire's decoder for sgtop's side: the same frames as ``wire.unpack``, made by msgpack's C code.

With 8 ranks of 1,000 steps/s some 800 frames come a second; ``wire.unpack``, which has to be plain Python for the
agent's sake, would take half of sgtop's CPU for them.
"""

from __future__ import annotations

from typing import Any

import msgpack
from sgtop_agent import wire


def unpack(body: bytes) -> wire.Frame:
    """The map in a frame's body; ``bin`` values are bytes.

    Raises:
        WireError: anything but exactly one map with string keys and a string ``k``.
    """
    try:
        v: Any = msgpack.unpackb(body, raw=False, strict_map_key=True, unicode_errors="replace")
    except (ValueError, msgpack.UnpackException, RecursionError) as e:
        raise wire.WireError(f"not msgpack: {e or type(e).__name__}") from None
    if not isinstance(v, dict) or not isinstance(v.get("k"), str):
        raise wire.WireError("a frame must be a map with a kind")
    return v


def reader() -> wire.FrameReader:
    """A frame reader with this decoder."""
    return wire.FrameReader(decode=unpack)
