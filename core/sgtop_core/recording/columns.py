"""How columns of int64 become few bytes: a prediction a column, what is left split into byte planes.

``encode`` takes the columns of one table of a whole chunk, all sources after one another. A column is stored as the
difference to a prediction (the value before, another column of the row, the nearest time of another table), centred,
in units, zigzag, and cut into byte planes without the empty top ones; zstd then finds little more than noise.
The recipe travels with each column, so that a writer may learn better recipes without a new format version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .quantise import UNITS

Ints = npt.NDArray[np.int64]
Lookup = Callable[[str, str, int], Ints]
"""(table, column, source) → that column of this chunk, for ``near``; empty where there is none."""

RAW, DELTA, DIFF, LENGTH, AFTER, NEAR = range(6)
"""Predictions. RAW: none. DELTA: the row before. DIFF: column ``ref`` of this row; rows that hold -1 (unknown) are
kept apart. LENGTH and AFTER: end and start of segments that follow one another: the end is stored as the length, the
start as the distance to the end of the row before. NEAR: the nearest value of column ``ref`` (``table.column``) of
the same source, which is sorted."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a column is predicted; ``by`` names a column by whose value what is left is grouped."""

    kind: int = RAW
    ref: str = ""
    by: str = ""


RECIPES: dict[str, dict[str, Recipe]] = {
    "stage": {"t0": Recipe(AFTER, "t1"), "t1": Recipe(LENGTH, "t0", by="stage")},
    "step": {
        "ct": Recipe(DELTA),
        "t0": Recipe(NEAR, "stage.t0"),
        "t1": Recipe(NEAR, "stage.t1"),
        "tokens": Recipe(DIFF, "bs"),
        "decode_tokens": Recipe(DIFF, "bs"),
    },
    "forward": {
        "ct": Recipe(DELTA),
        "t0": Recipe(NEAR, "step.t0"),
        "t1": Recipe(DIFF, "t0", by="mode"),
        "gpu0": Recipe(DIFF, "t0", by="mode"),
        "gpu1": Recipe(DIFF, "gpu0", by="mode"),
        "gpu2": Recipe(DIFF, "gpu1", by="mode"),
        "tokens": Recipe(DIFF, "bs"),
    },
    "kernel": {"t0": Recipe(DELTA), "t1": Recipe(DIFF, "t0", by="name"), "graph": Recipe(DELTA)},
    "gc": {"t0": Recipe(DELTA), "t1": Recipe(DIFF, "t0")},
    "result": {"ct": Recipe(DELTA), "t": Recipe(NEAR, "stage.t0")},
}
_TIMES = frozenset({"t", "t0", "ct", "start"})


@dataclass(slots=True)
class Table:
    """One table of a chunk: columns in the order in which they can be decoded, rows of a source side by side."""

    name: str
    rows: list[tuple[int, int]]
    """(source, rows), in the order of the rows."""
    columns: dict[str, Ints] = field(default_factory=dict)

    @property
    def starts(self) -> list[int]:
        """Row at which each source begins."""
        return [0, *np.cumsum([n for _, n in self.rows]).tolist()][:-1]


def zigzag(v: Ints) -> npt.NDArray[np.uint64]:
    """Small numbers of either sign as small numbers without one."""
    return ((v << 1) ^ (v >> 63)).view(np.uint64)


def unzigzag(u: npt.NDArray[np.uint64]) -> Ints:
    """The inverse of :func:`zigzag`."""
    s = u.view(np.int64)
    return np.asarray(((u >> np.uint64(1)).view(np.int64)) ^ -(s & 1), dtype=np.int64)


def to_planes(v: Ints) -> list[bytes]:
    """Byte planes of ``v``, lowest first, without empty ones at the top; none when all is 0."""
    u = zigzag(v)
    top = int(u.max()).bit_length() if len(u) else 0
    b = u.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    return [b[:, i].tobytes() for i in range((top + 7) // 8)]


def from_planes(planes: Sequence[bytes], n: int) -> Ints:
    """The inverse of :func:`to_planes`.

    Raises:
        ValueError: a plane that does not hold ``n`` bytes, or more than eight.
    """
    if len(planes) > 8:
        raise ValueError("more than eight byte planes")
    b = np.zeros((n, 8), dtype=np.uint8)
    for i, p in enumerate(planes):
        b[:, i] = np.frombuffer(p, dtype=np.uint8, count=n) if len(p) == n else _bad_plane(n)
    return unzigzag(b.reshape(-1).view("<u8").astype(np.uint64, copy=False))


def _bad_plane(n: int) -> npt.NDArray[np.uint8]:
    raise ValueError(f"a byte plane without {n} values")


def _nearest(reference: Ints, v: Ints) -> Ints:
    i = np.searchsorted(reference, v)
    lo, hi = np.maximum(i - 1, 0), np.minimum(i, len(reference) - 1)
    return np.where(v - reference[lo] <= reference[hi] - v, lo, hi)


def _groups(table: Table, by: str) -> list[Ints]:
    """Row numbers of each value of column ``by``, in the order of the values; all rows where ``by`` is empty."""
    n = sum(k for _, k in table.rows)
    if not by:
        return [np.arange(n)]
    g = table.columns[by]
    order = np.argsort(g, kind="stable")
    cuts = np.flatnonzero(np.diff(g[order])) + 1
    return np.split(order, cuts)


def _recipe(table: Table, name: str, v: Ints, lookup: Lookup) -> Recipe:
    if len(v) == 0 or bool((v == v[0]).all()):
        return Recipe(RAW)
    r = RECIPES.get(table.name, {}).get(name)
    if r is None:
        return Recipe(DELTA) if name in _TIMES else _cheaper(v)
    here = set(table.columns)
    if r.kind == DIFF and r.ref not in here:
        return Recipe(DELTA)
    if r.kind in (LENGTH, AFTER) and not here >= {"t0", "t1"}:
        return Recipe(DELTA)
    if r.kind == NEAR:
        t, _, c = r.ref.partition(".")
        for source, _ in table.rows:
            ref = lookup(t, c, source)
            # Only a sorted reference can be searched; a chunk in which it is not, or is missing, does without.
            if len(ref) == 0 or bool((np.diff(ref) < 0).any()):
                return Recipe(DELTA)
    return r if r.by in here else Recipe(r.kind, r.ref)


def _cheaper(v: Ints) -> Recipe:
    if len(v) < 2:
        return Recipe(RAW)
    step = np.abs(np.diff(v)).sum(dtype=np.float64)
    spread = np.abs(v - v[0]).sum(dtype=np.float64)
    return Recipe(DELTA) if step < spread else Recipe(RAW)


def _order(table: Table) -> list[str]:
    """Column names so that each stands after those that its recipe reads."""
    recipes = RECIPES.get(table.name, {})
    done: list[str] = []

    def put(name: str) -> None:
        r = recipes.get(name, Recipe())
        for need in ((r.ref if r.kind in (DIFF, AFTER) else ""), r.by):
            if need in table.columns and need not in done:
                put(need)
        if name not in done:
            done.append(name)

    for name in table.columns:
        put(name)
    return done


def encode(table: Table, lookup: Lookup) -> list[dict[str, Any]]:
    """The columns of ``table``, each a map that msgpack can hold; :func:`decode` reads them back."""
    recipes = {name: _recipe(table, name, v, lookup) for name, v in table.columns.items()}
    pair = {name for name, r in recipes.items() if r.kind in (LENGTH, AFTER)}
    if len(pair) == 1:  # one of the two is constant in this chunk: they only work together
        recipes[pair.pop()] = Recipe(DELTA)
    return [_encode(table, name, recipes[name], lookup) for name in _order(table)]


def _encode(table: Table, name: str, recipe: Recipe, lookup: Lookup) -> dict[str, Any]:
    v = table.columns[name]
    out: dict[str, Any] = {"c": name}
    if recipe.kind == DIFF:
        unknown = v == -1
        if bool(unknown.any()):
            out["n"] = np.packbits(unknown).tobytes()
            v = np.where(unknown, table.columns[recipe.ref], v)
    rest, heads, index = _residual(table, recipe, v, lookup)
    unit = UNITS.get(table.name, {}).get(name, 1)
    if unit > 1 and not bool((rest % unit).any()):
        rest = rest // unit
        out["u"] = unit
    if recipe.kind != RAW:
        out["k"] = recipe.kind
    if recipe.ref:
        out["r"] = recipe.ref
    if heads:
        out["h"] = heads
    if index is not None:
        out["i"] = to_planes(index)
    if recipe.by:
        out["b"] = recipe.by
    parts = [rest[g] for g in _groups(table, recipe.by)]
    centres = [int(np.partition(p, len(p) // 2)[len(p) // 2]) if len(p) else 0 for p in parts]
    if any(centres):
        out["m"] = centres
        parts = [p - m for p, m in zip(parts, centres, strict=True)]
    planes = to_planes(np.concatenate(parts))
    if planes:
        out["p"] = planes
    return out


def _residual(table: Table, r: Recipe, v: Ints, lookup: Lookup) -> tuple[Ints, list[int], Ints | None]:
    if r.kind == RAW:
        return v, [], None
    if r.kind in (DIFF, LENGTH):
        return v - table.columns[r.ref], [], None
    starts = table.starts
    if r.kind == NEAR:
        rest, index = np.empty_like(v), np.empty_like(v)
        t, _, c = r.ref.partition(".")
        for (source, n), s in zip(table.rows, starts, strict=True):
            ref = lookup(t, c, source)
            at = _nearest(ref, v[s : s + n])
            rest[s : s + n] = v[s : s + n] - ref[at]
            index[s : s + n] = np.diff(at, prepend=0)
        return rest, [], index
    before = v if r.kind == DELTA else table.columns[r.ref]
    rest = v.copy()
    rest[1:] -= before[:-1]
    first = [s for s, (_, n) in zip(starts, table.rows, strict=True) if n]
    heads = [int(x) for x in v[first]]
    rest[first] = 0  # kept apart: one jump between two sources would cost eight planes
    return rest, heads, None


def decode(name: str, rows: list[tuple[int, int]], packed: Sequence[Mapping[str, Any]], lookup: Lookup) -> Table:
    """The table that :func:`encode` was given.

    Raises:
        ValueError, KeyError, TypeError, IndexError: bytes that no writer made.
    """
    table = Table(name, rows)
    n = sum(k for _, k in rows)
    for p in packed:
        rest = from_planes(p.get("p", ()), n)
        centres = p.get("m", ())
        plain = np.empty_like(rest)
        at = 0
        for i, g in enumerate(_groups(table, str(p.get("b", "")))):
            plain[g] = rest[at : at + len(g)] + (int(centres[i]) if centres else 0)
            at += len(g)
        plain *= int(p.get("u", 1))
        v = _restore(table, plain, p, lookup)
        if "n" in p:
            v = np.where(np.unpackbits(np.frombuffer(p["n"], np.uint8), count=n).astype(bool), -1, v)
        table.columns[str(p["c"])] = v
    return table


def _restore(table: Table, rest: Ints, p: Mapping[str, Any], lookup: Lookup) -> Ints:
    kind, ref = int(p.get("k", RAW)), str(p.get("r", ""))
    if kind in (RAW, LENGTH):
        return rest
    if kind == DIFF:
        return rest + table.columns[ref]
    starts = table.starts
    if kind == NEAR:
        index = from_planes(p["i"], len(rest))
        t, _, c = ref.partition(".")
        for (source, n), s in zip(table.rows, starts, strict=True):
            rest[s : s + n] += lookup(t, c, source)[np.cumsum(index[s : s + n])]
        return rest
    if kind not in (DELTA, AFTER):
        raise ValueError(f"unknown prediction {kind}")
    if kind == AFTER:
        rest[1:] += table.columns[ref][:-1]
    live = [(s, n) for s, (_, n) in zip(starts, table.rows, strict=True) if n]
    heads = p["h"]
    if len(heads) != len(live):
        raise ValueError("first values do not fit the sources")
    for (s, n), head in zip(live, heads, strict=True):
        rest[s] = head
        rest[s : s + n] = np.cumsum(rest[s : s + n])
    if kind == AFTER:
        table.columns[ref] = table.columns[ref] + rest
    return rest
