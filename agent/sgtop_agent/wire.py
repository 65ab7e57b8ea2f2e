"""The wire between the agent and sgtop: frames, their msgpack codec, and columns. The schema is in ``schema``.

A frame is a 4-byte little-endian length and that many bytes of msgpack, which hold one map. The map's
``k`` names its kind. Unknown fields are ignored; unknown kinds are counted by the reader. Every time is
``CLOCK_MONOTONIC`` in nanoseconds; ``-1`` in a column stands for "not known" unless a column says otherwise.

Events travel as columns: a column is msgpack ``bin`` of little-endian int64, so that the agent needs no fast
msgpack of its own and the reader can view a column with numpy without a copy. ``docs/wire.md`` is made from
``schema`` by ``python -m sgtop_agent.wire``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

from .schema import CLIENT_TIMEOUT_S as CLIENT_TIMEOUT_S
from .schema import HEARTBEAT_S as HEARTBEAT_S
from .schema import HELLO_AGENT as HELLO_AGENT
from .schema import KERNELS as KERNELS
from .schema import KINDS as KINDS
from .schema import MAX_FRAME as MAX_FRAME
from .schema import PROTOCOL as PROTOCOL
from .schema import STAGES as STAGES
from .schema import STAT as STAT
from .schema import SWITCH as SWITCH
from .schema import TABLES as TABLES
from .schema import document

Value = Union[None, bool, int, float, str, bytes, "list[Value]", "dict[str, Value]"]
Frame = dict[str, Any]

_U32 = struct.Struct("<I")


class WireError(ValueError):
    """Bytes that are not what the schema says; the text says what."""


# --- msgpack: the subset that frames use, so that the agent needs no package -------------------------


def _pack(v: Any, out: bytearray) -> None:
    if v is None:
        out.append(0xC0)
    elif v is True:
        out.append(0xC3)
    elif v is False:
        out.append(0xC2)
    elif isinstance(v, int):
        if 0 <= v < 128:
            out.append(v)
        elif -32 <= v < 0:
            out.append(v & 0xFF)
        elif -(1 << 63) <= v < (1 << 63):
            out += b"\xd3" + v.to_bytes(8, "big", signed=True)
        elif v < (1 << 64):
            out += b"\xcf" + v.to_bytes(8, "big")
        else:
            raise WireError(f"integer out of range: {v}")
    elif isinstance(v, float):
        out += b"\xcb" + struct.pack(">d", v)
    elif isinstance(v, str):
        b = v.encode("utf-8", "replace")
        n = len(b)
        if n < 32:
            out.append(0xA0 | n)
        else:
            out += b"\xdb" + n.to_bytes(4, "big")
        out += b
    elif isinstance(v, (bytes, bytearray, memoryview)):
        b = bytes(v)
        out += b"\xc6" + len(b).to_bytes(4, "big") + b
    elif isinstance(v, (list, tuple)):
        if len(v) < 16:
            out.append(0x90 | len(v))
        else:
            out += b"\xdd" + len(v).to_bytes(4, "big")
        for x in v:
            _pack(x, out)
    elif isinstance(v, Mapping):
        if len(v) < 16:
            out.append(0x80 | len(v))
        else:
            out += b"\xdf" + len(v).to_bytes(4, "big")
        for k, x in v.items():
            _pack(k, out)
            _pack(x, out)
    else:
        raise WireError(f"cannot pack a {type(v).__name__}")


_MAX_DEPTH = 32

WHO_LENGTH = 120
"""What an agent keeps of a command's ``who``; a client knows its own flips by it."""


class _Unpacker:
    __slots__ = ("b", "i")

    def __init__(self, b: memoryview) -> None:
        self.b = b
        self.i = 0

    def take(self, n: int) -> memoryview:
        j = self.i + n
        if j > len(self.b):
            raise WireError("truncated")
        r = self.b[self.i : j]
        self.i = j
        return r

    def uint(self, n: int) -> int:
        return int.from_bytes(self.take(n), "big")

    def text(self, n: int) -> str:
        return str(self.take(n), "utf-8", "replace")

    def seq(self, n: int, depth: int) -> list[Any]:
        if n > len(self.b) - self.i:
            raise WireError("truncated")
        return [self.value(depth) for _ in range(n)]

    def map(self, n: int, depth: int) -> dict[str, Any]:
        if 2 * n > len(self.b) - self.i:
            raise WireError("truncated")
        out: dict[str, Any] = {}
        for _ in range(n):
            k = self.value(depth)
            if not isinstance(k, str):
                raise WireError("a map's key must be a string")
            out[k] = self.value(depth)
        return out

    def value(self, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise WireError("nested too deep")
        c = self.uint(1)
        if c < 0x80:
            return c
        if c >= 0xE0:
            return c - 256
        if c < 0x90:
            return self.map(c & 15, depth + 1)
        if c < 0xA0:
            return self.seq(c & 15, depth + 1)
        if c < 0xC0:
            return self.text(c & 31)
        if c == 0xC0:
            return None
        if c in (0xC2, 0xC3):
            return c == 0xC3
        if c in (0xC4, 0xC5, 0xC6):
            return self.take(self.uint(1 << (c - 0xC4)))
        if c == 0xCA:
            return struct.unpack(">f", self.take(4))[0]
        if c == 0xCB:
            return struct.unpack(">d", self.take(8))[0]
        if 0xCC <= c <= 0xCF:
            return self.uint(1 << (c - 0xCC))
        if 0xD0 <= c <= 0xD3:
            n = 1 << (c - 0xD0)
            return int.from_bytes(self.take(n), "big", signed=True)
        if c in (0xD9, 0xDA, 0xDB):
            return self.text(self.uint(1 << (c - 0xD9)))
        if c in (0xDC, 0xDD):
            return self.seq(self.uint(2 if c == 0xDC else 4), depth + 1)
        if c in (0xDE, 0xDF):
            return self.map(self.uint(2 if c == 0xDE else 4), depth + 1)
        raise WireError(f"unknown msgpack byte 0x{c:02x}")


def pack(frame: Mapping[str, Any]) -> bytes:
    """One frame as bytes, its length included.

    Raises:
        WireError: a value that msgpack cannot hold, or a frame longer than MAX_FRAME.
    """
    out = bytearray(4)
    _pack(frame, out)
    n = len(out) - 4
    if n > MAX_FRAME:
        raise WireError(f"frame of {n} bytes")
    _U32.pack_into(out, 0, n)
    return bytes(out)


def unpack(body: bytes | bytearray | memoryview) -> Frame:
    """The map in a frame's body (without the length). ``bin`` values are memoryviews into ``body``.

    Raises:
        WireError: anything but exactly one map with string keys and a string ``k``.
    """
    u = _Unpacker(memoryview(body))
    v = u.value()
    if u.i != len(u.b):
        raise WireError("bytes after the frame")
    if not isinstance(v, dict) or not isinstance(v.get("k"), str):
        raise WireError("a frame must be a map with a kind")
    return v


class FrameReader:
    """Cuts a byte stream into frames. ``feed`` what the socket gave; iterate what is complete.

    ``decode`` makes a frame of a body; sgtop gives a faster one than the agent can have.
    """

    def __init__(self, max_frame: int = MAX_FRAME, decode: Callable[[bytes], Frame] = unpack) -> None:
        self._buf = bytearray()
        self._max = max_frame
        self._decode = decode

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield each complete frame.

        Raises:
            WireError: garbage; the stream is of no use after it.
        """
        self._buf += data
        at = 0
        try:
            while len(self._buf) - at >= 4:
                (n,) = _U32.unpack_from(self._buf, at)
                if n > self._max:
                    raise WireError(f"frame of {n} bytes")
                if len(self._buf) - at < 4 + n:
                    break
                body = bytes(self._buf[at + 4 : at + 4 + n])
                at += 4 + n
                yield self._decode(body)
        finally:
            del self._buf[:at]  # once, not a frame

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buf)


def _packed(v: Value) -> bytes:
    out = bytearray()
    _pack(v, out)
    return bytes(out)


# --- columns ---------------------------------------------------------------------------------------


def column(values: Sequence[int]) -> bytes:
    """A column as little-endian int64."""
    a = values if isinstance(values, array) and values.typecode == "q" else array("q", values)
    if sys.byteorder == "big":
        a = array("q", a)
        a.byteswap()
    return a.tobytes()


def events(table: str, columns: Mapping[str, Sequence[int]]) -> Frame:
    """An ``ev`` frame of ``table``; all columns of the schema, of one length.

    Raises:
        WireError: a table or a column that the schema does not have, or columns of different lengths.
    """
    want = TABLES.get(table)
    if want is None or set(columns) != set(want):
        raise WireError(f"columns of {table}: {sorted(columns)}")
    lengths = {len(c) for c in columns.values()}
    if len(lengths) != 1:
        raise WireError(f"columns of {table} differ in length")
    return {"k": "ev", "e": table, "n": lengths.pop(), "c": {name: column(v) for name, v in columns.items()}}


_HEADS = {
    table: (
        b"\x84\xa1k\xa2ev\xa1e%b\xa1n" % _packed(table),
        b"\xa1c%b" % (bytes([0x80 | len(columns)]) if len(columns) < 16 else b"\xdf" + len(columns).to_bytes(4, "big")),
        tuple(_packed(name) for name in columns),
    )
    for table, columns in TABLES.items()
}
"""Table → bytes of its frame up to the number of rows, between that and the columns, and before each column."""


def pack_events(table: str, columns: Sequence[Sequence[int]]) -> bytes:
    """``pack(events(…))`` for columns in the order of the schema, in a third of the time; they must fit it."""
    begin, middle, names = _HEADS[table]
    n = len(columns[0])
    size = b"\xc6" + (8 * n).to_bytes(4, "big")
    parts = [b"", begin, _packed(n), middle]
    for name, values in zip(names, columns, strict=True):
        parts += (name, size, column(values))
    parts[0] = _U32.pack(sum(map(len, parts)))
    return b"".join(parts)


def check_events(frame: Frame) -> tuple[str, int, dict[str, memoryview]]:
    """(table, rows, column → raw int64 bytes) of an ``ev`` frame; unknown columns are kept.

    Raises:
        WireError: a column that is not rows × 8 bytes.
    """
    table, n, cols = frame.get("e"), frame.get("n"), frame.get("c")
    if not isinstance(table, str) or not isinstance(n, int) or n < 0 or not isinstance(cols, dict):
        raise WireError("an ev frame without e, n or c")
    for name, raw in cols.items():
        if not isinstance(raw, memoryview) or len(raw) != 8 * n:
            raise WireError(f"column {table}.{name} does not hold {n} values")
    return table, n, cols


if __name__ == "__main__":
    print(document((__doc__ or "").strip()))
