"""The file around the chunks: a head, self-delimiting chunks with checksums, an index at the end that may be missing.

::

    file   := "SGTOPREC" u16 version u16 0 chunk*
    chunk  := "sgCK" u32 length u32 crc32 u8 kind i64 first_ns i64 last_ns u32 entries body[length]
    kind   := 1 meta | 2 entries | 3 index

All integers are little-endian; the crc covers everything of the chunk after itself. ``meta`` is the first chunk (a
msgpack map: when, where, of what). ``index`` is written on a clean end (msgpack list of ``[offset, first_ns, last_ns,
entries]``) and followed by ``u64 offset "SGTOPEND"``; without it the reader walks the chunks' heads. A reader that
meets damage looks for the next "sgCK" and goes on: a flipped bit costs one chunk, at most a second.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgpack

from .errors import RecordingError

MAGIC = b"SGTOPREC"
VERSION = 1
HEAD = struct.Struct("<8sHH")
CHUNK_MAGIC = b"sgCK"
_CHUNK = struct.Struct("<4sII")
_INNER = struct.Struct("<BqqI")
CHUNK_HEAD = _CHUNK.size + _INNER.size
END = b"SGTOPEND"
_TRAILER = struct.Struct("<Q8s")
META, ENTRIES, INDEX = 1, 2, 3
MAX_CHUNK = 64 * 1024 * 1024
"""Bytes of a chunk's body; a longer one is damage."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Where a chunk lies and what it holds."""

    offset: int
    kind: int
    first_ns: int
    last_ns: int
    entries: int
    length: int
    """Bytes of the body."""


def head() -> bytes:
    """The first bytes of a file."""
    return HEAD.pack(MAGIC, VERSION, 0)


def frame_chunk(kind: int, body: bytes, first_ns: int = 0, last_ns: int = 0, entries: int = 0) -> bytes:
    """``body`` as a chunk, ready to be appended."""
    inner = _INNER.pack(kind, first_ns, last_ns, entries)
    return _CHUNK.pack(CHUNK_MAGIC, len(body), zlib.crc32(body, zlib.crc32(inner))) + inner + body


def frame_index(refs: list[Ref], offset: int) -> bytes:
    """The index chunk, to stand at ``offset``, and the trailer that points to it."""
    rows = [[r.offset, r.first_ns, r.last_ns, r.entries, r.length] for r in refs if r.kind == ENTRIES]
    return frame_chunk(INDEX, msgpack.packb(rows)) + _TRAILER.pack(offset, END)


def check_head(f: BinaryIO, name: str) -> None:
    """Read the file's head.

    Raises:
        RecordingError: not a recording, or one of a newer sgtop.
    """
    f.seek(0)
    raw = f.read(HEAD.size)
    if len(raw) < HEAD.size or raw[:8] != MAGIC:
        why = "it is empty" if not raw else "it does not begin like a recording"
        raise RecordingError(
            f"{name} is not a recording of sgtop", why, "sgtop record --attach :PORT -o FILE makes one"
        )
    version = HEAD.unpack(raw)[1]
    if version > VERSION:
        raise RecordingError(
            f"{name} was recorded by a newer sgtop",
            f"its format is {version}, this sgtop reads up to {VERSION}",
            "pip install --upgrade sgtop-profiler",
        )
    if version < 1:
        raise RecordingError(f"{name} is damaged", "its format number is 0")


def read_chunk(f: BinaryIO, offset: int, size: int) -> tuple[Ref, bytes] | None:
    """The chunk at ``offset`` of a file of ``size`` bytes; None where none, or a damaged one, begins there."""
    f.seek(offset)
    raw = f.read(CHUNK_HEAD)
    if len(raw) < CHUNK_HEAD or raw[:4] != CHUNK_MAGIC:
        return None
    _, length, crc = _CHUNK.unpack_from(raw)
    if length > MAX_CHUNK or offset + CHUNK_HEAD + length > size:
        return None
    body = f.read(length)
    inner = raw[_CHUNK.size :]
    if len(body) != length or zlib.crc32(body, zlib.crc32(inner)) != crc:
        return None
    kind, first, last, entries = _INNER.unpack(inner)
    return Ref(offset, kind, first, last, entries, length), body


def _heads(f: BinaryIO, size: int) -> Iterator[Ref | None]:
    """Every sound chunk by walking the file; None for each stretch of damage that was skipped."""
    at = HEAD.size
    while at < size:
        found = read_chunk(f, at, size)
        if found is not None:
            yield found[0]
            at += CHUNK_HEAD + found[0].length
            continue
        if size - at == _TRAILER.size:
            f.seek(at)
            if f.read()[-8:] == END:
                return
        yield None
        at = _next_magic(f, at + 1, size)


def _next_magic(f: BinaryIO, at: int, size: int) -> int:
    step = 1 << 20
    while at < size:
        f.seek(at)
        i = f.read(step + 3).find(CHUNK_MAGIC)
        if i >= 0:
            return at + i
        at += step
    return size


def scan(f: BinaryIO, size: int) -> tuple[list[Ref], list[int]]:
    """(sound chunks of entries in order, how many of them stand before each stretch of damage), from the chunks."""
    refs: list[Ref] = []
    damage: list[int] = []
    for r in _heads(f, size):
        if r is None:
            damage.append(len(refs))
        elif r.kind == ENTRIES:
            refs.append(r)
    return refs, damage


def read_index(f: BinaryIO, size: int) -> list[Ref] | None:
    """The index of a file that was ended cleanly; None where there is none or it does not fit the file."""
    if size < HEAD.size + _TRAILER.size:
        return None
    f.seek(size - _TRAILER.size)
    offset, end = _TRAILER.unpack(f.read(_TRAILER.size))
    if end != END or offset >= size:
        return None
    found = read_chunk(f, offset, size)
    if found is None or found[0].kind != INDEX or offset + CHUNK_HEAD + found[0].length + _TRAILER.size != size:
        return None
    try:
        return [Ref(int(o), ENTRIES, int(a), int(b), int(n), int(k)) for o, a, b, n, k in msgpack.unpackb(found[1])]
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return None


def pack_meta(meta: dict[str, Any]) -> bytes:
    """The meta chunk."""
    return frame_chunk(META, msgpack.packb(meta))


def read_meta(f: BinaryIO, size: int) -> dict[str, Any]:
    """The meta chunk; empty where it is damaged, as no reader needs it."""
    found = read_chunk(f, HEAD.size, size)
    if found is None or found[0].kind != META:
        return {}
    try:
        meta = msgpack.unpackb(found[1])
    except (ValueError, msgpack.exceptions.UnpackException):
        return {}
    return meta if isinstance(meta, dict) else {}
