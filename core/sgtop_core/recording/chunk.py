"""A chunk's body: up to a second of entries, zstd around msgpack, columns of a table gathered over all frames.

An entry is what the session took in: who sent it, when it was received, and the frame as it was. Frames of one table
and source are put after one another (one long column compresses, fifty short ones do not) and cut apart again when
read, so that the model is fed exactly the frames of the live run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np
import zstandard
from sgtop_agent import wire

from . import columns
from .errors import DamagedChunk

LEVEL = 3
MAX_BODY = 256 * 1024 * 1024
"""Bytes of an unpacked chunk; more is damage, not data."""
_OWN_BLOCK = 1024
"""Bytes from which a plane gets a zstd block, and so a Huffman table, of its own."""
_ODD = "surrogateescape"
"""Names of processes are bytes to Linux; what is not UTF-8 in them comes back as it was."""
_FIELDS = frozenset({"k", "e", "n", "c"})
_PLANES = ("p", "i")
"""Fields of a packed column that hold byte planes."""
_NONE = np.empty(0, dtype=np.int64)


class Entry(NamedTuple):
    """What the session took in at one moment."""

    source: str
    """A rank's label (``TP0``), or the name of a probe (``sched``, ``gpu``, ``session``, …)."""
    frame: wire.Frame
    """A frame of the agent's wire, or an event of sgtop's own of the same form."""
    mono_ns: int
    """When it was received, CLOCK_MONOTONIC."""


class Decoded(NamedTuple):
    """What a chunk's body holds."""

    entries: list[Entry]
    sticky: list[Entry]
    """All that a reader who starts here must know first; empty in most chunks."""
    told: list[Entry]
    """What only the chunk before tells, for a reader who could not read that."""


@dataclass(slots=True)
class _Shape:
    """Frames of one table with the same columns."""

    kind: str
    table: str
    names: tuple[str, ...]
    parts: dict[int, list[tuple[int, Mapping[str, Any]]]]
    """source → (rows, columns) of each of its frames."""


def _columnar(frame: wire.Frame) -> bool:
    n, c = frame.get("n"), frame.get("c")
    return (
        isinstance(n, int)
        and n >= 0
        and isinstance(c, Mapping)
        and isinstance(frame.get("e"), str)
        and isinstance(frame.get("k"), str)
        and all(isinstance(v, (bytes, bytearray, memoryview)) and len(v) == 8 * n for v in c.values())
    )


def _plain(v: Any) -> Any:
    """``v`` with what msgpack does not take turned into what it does; never fails: a probe's slip is no lost second."""
    if isinstance(v, Mapping):
        return {str(k): _plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [_plain(x) for x in v]
    if isinstance(v, (memoryview, bytearray)):
        return bytes(v)
    if isinstance(v, np.generic):
        return v.item()
    if v is None or isinstance(v, (bool, float, str, bytes)) or (isinstance(v, int) and -(1 << 63) <= v < 1 << 64):
        return v
    return str(v)


def encode(entries: Sequence[Entry], sticky: Sequence[Entry] = (), told: Sequence[Entry] = ()) -> bytes:
    """The body of a chunk. ``sticky`` is what a reader that starts here must know first (hellos, states), ``told`` what
    of it only the chunk before tells.
    """
    sources: dict[str, int] = {}
    shapes: dict[tuple[str, str, tuple[str, ...]], int] = {}
    packed: list[_Shape] = []
    plain: list[Any] = []
    extra: list[Any] = []
    seq: list[tuple[int, int, int, int]] = []
    for source, frame, t in entries:
        s = sources.setdefault(source, len(sources))
        if not _columnar(frame):
            seq.append((s, t, 0, 0))
            plain.append(_plain(frame))
            continue
        key = (frame["k"], frame["e"], tuple(frame["c"]))
        i = shapes.get(key)
        if i is None:
            i = shapes[key] = len(packed)
            packed.append(_Shape(*key, {}))
        seq.append((s, t, i + 1, frame["n"]))
        more = {k: _plain(v) for k, v in frame.items() if k not in _FIELDS}
        if more:
            extra.append([len(seq) - 1, more])
        packed[i].parts.setdefault(s, []).append((frame["n"], frame["c"]))
    tables = [_gather(p) for p in packed]
    lookup = _lookup(tables)
    seq_table = columns.Table("", [(0, len(seq))])
    for j, name in enumerate(("source", "t", "shape", "n")):
        seq_table.columns[name] = np.array([x[j] for x in seq], dtype=np.int64)
    order = _decode_order(tables)
    head = {
        "src": list(sources),
        "plain": plain,
        "extra": extra,
        "sticky": _listed(sticky),
        "told": _listed(told),
        "seq": [len(seq), columns.encode(seq_table, lookup)],
    }
    body = [
        {
            "i": i,
            "k": packed[i].kind,
            "e": packed[i].table,
            "names": list(packed[i].names),
            "rows": [list(r) for r in tables[i].rows],
            "cols": columns.encode(tables[i], lookup),
        }
        for i in order
    ]
    return _compress(head, body)


def _listed(entries: Sequence[Entry]) -> list[Any]:
    return [[e.source, _plain(e.frame), e.mono_ns] for e in entries]


def _gather(shape: _Shape) -> columns.Table:
    table = columns.Table(shape.table, [(s, sum(n for n, _ in parts)) for s, parts in shape.parts.items()])
    for name in shape.names:
        raw = b"".join([c[name] for parts in shape.parts.values() for _, c in parts])
        table.columns[name] = np.frombuffer(raw, dtype="<i8").astype(np.int64, copy=False)
    return table


def _decode_order(tables: Sequence[columns.Table]) -> list[int]:
    """Tables that others predict from come first."""
    first = {"stage": 0, "step": 1}
    return sorted(range(len(tables)), key=lambda i: first.get(tables[i].name, 2))


def _lookup(tables: Sequence[columns.Table]) -> columns.Lookup:
    def lookup(table: str, column: str, source: int) -> columns.Ints:
        found = [t for t in tables if t.name == table and column in t.columns]
        if len(found) != 1:  # two shapes of one table in a chunk (an agent was replaced): predict without
            return _NONE
        t = found[0]
        for (s, n), start in zip(t.rows, t.starts, strict=True):
            if s == source:
                return t.columns[column][start : start + n]
        return _NONE

    return lookup


def _compress(head: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> bytes:
    """Zstd of one msgpack array, then of the long planes that stand in it as their lengths, in the same order.

    Each long plane begins a zstd block, so that a column's bytes share one Huffman table of their own.
    """
    later: list[bytes] = []

    def shorten(planes: Sequence[bytes]) -> list[bytes | int]:
        later.extend(p for p in planes if len(p) >= _OWN_BLOCK)
        return [p if len(p) < _OWN_BLOCK else len(p) for p in planes]

    def column(c: Mapping[str, Any]) -> dict[str, Any]:
        return {k: shorten(v) if k in _PLANES else v for k, v in c.items()}

    count, seq = head["seq"]
    head = {**head, "seq": [count, [column(c) for c in seq]]}
    body = msgpack.packb([head, [{**t, "cols": [column(c) for c in t["cols"]]} for t in tables]], unicode_errors=_ODD)
    z = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    out = [z.compress(body)]
    for p in later:
        out += (z.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), z.compress(p))
    out.append(z.flush())
    return b"".join(out)


def decode(body: bytes) -> Decoded:
    """What is in a chunk's body.

    Raises:
        DamagedChunk: bytes that :func:`encode` did not make.
    """
    try:
        return _decode(body)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, MemoryError, zstandard.ZstdError) as e:
        raise DamagedChunk("a chunk of the recording is damaged", f"{type(e).__name__}: {e}") from e
    except msgpack.exceptions.UnpackException as e:
        raise DamagedChunk("a chunk of the recording is damaged", str(e) or "it ends too early") from e


def _decode(body: bytes) -> Decoded:
    raw = _inflate(body)
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_BODY, strict_map_key=True, unicode_errors=_ODD)
    unpacker.feed(raw)
    head, packed = unpacker.unpack()
    at = unpacker.tell()

    def lengthen(planes: Sequence[bytes | int]) -> list[bytes]:
        nonlocal at
        out = []
        for p in planes:
            if isinstance(p, int):
                if p < 0 or at + p > len(raw):
                    raise ValueError("a plane beyond the end")
                out.append(raw[at : at + p])
                at += p
            else:
                out.append(p)
        return out

    def column(c: Mapping[str, Any]) -> dict[str, Any]:
        return {k: lengthen(v) if k in _PLANES else v for k, v in c.items()}

    sources = [str(s) for s in head["src"]]
    count, seq_columns = head["seq"]
    if not isinstance(count, int) or not 0 <= count <= MAX_BODY // 8:
        raise ValueError("a chunk with an impossible number of entries")
    seq = columns.decode("", [(0, count)], [column(c) for c in seq_columns], lambda *_: _NONE).columns
    tables: list[columns.Table] = []
    lookup = _lookup(tables)
    frames: dict[int, tuple[str, list[str], columns.Table]] = {}
    for p in packed:
        rows = [(int(s), int(n)) for s, n in p["rows"]]
        if any(n < 0 for _, n in rows) or sum(n for _, n in rows) > MAX_BODY // 8:
            raise ValueError("a table with an impossible number of rows")
        tables.append(columns.Table(str(p["e"]), rows))
        tables[-1] = columns.decode(tables[-1].name, rows, [column(c) for c in p["cols"]], lookup)
        frames[int(p["i"])] = (str(p["k"]), [str(n) for n in p["names"]], tables[-1])
    cursor = {(i, s): start for i, (_, _, t) in frames.items() for (s, _), start in zip(t.rows, t.starts, strict=True)}
    raws = {i: {name: memoryview(t.columns[name].tobytes()) for name in names} for i, (_, names, t) in frames.items()}
    plain = iter(head["plain"])
    entries: list[Entry] = []
    for s, t, shape, n in zip(*(seq[k].tolist() for k in ("source", "t", "shape", "n")), strict=True):
        if shape == 0:
            entries.append(Entry(sources[s], dict(next(plain)), t))
            continue
        kind, names, table = frames[shape - 1]
        start = cursor[shape - 1, s]
        cursor[shape - 1, s] = start + n
        c = {name: raws[shape - 1][name][8 * start : 8 * (start + n)] for name in names}
        if any(len(v) != 8 * n for v in c.values()):
            raise ValueError("a frame beyond the end of its table")
        entries.append(Entry(sources[s], {"k": kind, "e": table.name, "n": n, "c": c}, t))
    for i, more in head["extra"]:
        entries[i].frame.update(more)
    # older recordings have no ``told``
    sticky, told = ([Entry(str(s), dict(f), int(t)) for s, f, t in head.get(k, ())] for k in ("sticky", "told"))
    return Decoded(entries, sticky, told)


def _inflate(body: bytes) -> bytes:
    out: list[bytes] = []
    size = 0
    for part in zstandard.ZstdDecompressor().read_to_iter(body):
        size += len(part)
        if size > MAX_BODY:
            raise ValueError("a chunk larger than any writer makes")
        out.append(part)
    return b"".join(out)
