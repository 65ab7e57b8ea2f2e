"""Kernels to forwards, by time.

Not by correlation id: before CUDA 13.1 update 1 that of graph launches is wrong from the second tracing session on.
A forward owns what runs from its start event to its last event; half of the way to the neighbouring forward, at most
``SLACK_NS``, is added on both sides, because events are placed near the launches and their clock is anchored to some
tens of microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64

SLACK_NS = 150_000
MAX_FORWARDS = 40_000
OUTSIDE = 0
"""Code of "no forward"."""
_COLUMNS = ("ct", "runner", "mode", "t0", "t1", "gpu0", "gpu1", "gpu2", "bs", "graph")


@dataclass(frozen=True, slots=True)
class Owners:
    """Which forward each kernel belongs to."""

    code: I64
    """Index into ``Forwards.labels``; ``OUTSIDE`` for none."""
    forward: I64
    """Running number of the forward; -1 for none."""
    host: I64
    """Host time (ns) at which that forward began to be launched; -1 for none."""


class Forwards:
    """The latest forwards of one rank, ordered by when they began on the GPU."""

    def __init__(self, modes: Mapping[int, str]) -> None:
        """``modes``: number → name, from the hello."""
        self._modes = dict(modes)
        self.labels: list[str] = [""]
        self._codes: dict[tuple[int, int], int] = {}
        self._rows = dict.fromkeys((*_COLUMNS, "begin", "finish", "number", "code"), EMPTY)
        self._store, self._length = dict(self._rows), 0
        """Rows in order, with room to grow; ``_rows`` are views of its newest."""
        self._count = 0
        self.known_until = 0
        """Every forward that ended before this (ns) is known."""
        self.timed = False
        """Whether the newest forwards carry GPU times; else the host's are used."""

    def _code(self, runner: int, mode: int) -> int:
        key = (runner, mode)
        if key not in self._codes:
            name = self._modes.get(mode, f"mode {mode}")
            self._codes[key] = len(self.labels)
            self.labels.append(name if runner == 0 else f"draft {name}")
        return self._codes[key]

    def add(self, rows: Mapping[str, I64]) -> None:
        """Take rows of the ``forward`` table."""
        n = len(rows["ct"])
        if not n:
            return
        new = {c: np.asarray(rows[c], np.int64) for c in _COLUMNS}
        timed = (new["gpu0"] > 0) & (new["gpu1"] >= new["gpu0"])
        self.timed = bool(timed[-1])
        new["begin"] = np.where(timed, new["gpu0"], new["t0"])
        new["finish"] = np.where(timed, np.maximum(new["gpu1"], new["gpu2"]), new["t1"])
        new["number"] = np.arange(self._count, self._count + n)
        kinds, which = np.unique(new["runner"] << 32 | (new["mode"] & 0xFFFFFFFF), return_inverse=True)
        codes = np.array([self._code(int(k) >> 32, int(k) & 0xFFFFFFFF) for k in kinds], np.int64)
        new["code"] = codes[which]
        self._count += n
        self._append(new)
        self.known_until = max(self.known_until, int(new["finish"].max()))

    def _append(self, new: dict[str, I64]) -> None:
        """Add rows in order of their begin; what comes late is sorted in."""
        begin = new["begin"]
        at = self._length
        late = at > 0 and int(begin.min()) < int(self._store["begin"][at - 1])
        if len(begin) + at > len(self._store["begin"]):
            kept = min(at, MAX_FORWARDS)
            size = max(2 * MAX_FORWARDS, kept + len(begin))
            self._store = {c: np.concatenate((v[at - kept : at], np.zeros(size - kept, np.int64)))
                           for c, v in self._store.items()}  # fmt: skip
            at = kept
        self._length = at + len(begin)
        for c, v in self._store.items():
            v[at : self._length] = new[c]
        if late or bool((np.diff(begin) < 0).any()):
            first = int(np.searchsorted(self._store["begin"][:at], begin.min(), side="right"))
            order = np.argsort(self._store["begin"][first : self._length], kind="stable")
            for v in self._store.values():
                v[first : self._length] = v[first : self._length][order]
        first = max(0, self._length - MAX_FORWARDS)
        self._rows = {c: v[first : self._length] for c, v in self._store.items()}

    def assign(self, start: I64, end: I64) -> Owners:
        """Owner of each kernel, by the middle of ``start`` to ``end`` (CLOCK_MONOTONIC ns)."""
        n = len(start)
        rows = self._rows
        if n and len(rows["begin"]) > 64:  # only forwards around these kernels
            low_at, high_at = np.searchsorted(rows["begin"], (int(start.min()), int(end.max())))
            rows = {c: v[max(0, int(low_at) - 8) : int(high_at) + 8] for c, v in rows.items()}
        begin, finish = rows["begin"], rows["finish"]
        if not len(begin):
            return Owners(np.zeros(n, np.int64), np.full(n, -1, np.int64), np.full(n, -1, np.int64))
        far = 1 << 62
        before = np.concatenate(([-far], finish[:-1]))
        after = np.concatenate((begin[1:], [far]))
        low = begin - np.clip((begin - before) // 2, 0, SLACK_NS)
        high = finish + np.clip((after - finish) // 2, 0, SLACK_NS)
        middle = start + (end - start) // 2
        i = np.searchsorted(low, middle, side="right") - 1
        at = np.maximum(i, 0)
        inside = (i >= 0) & (middle <= high[at])
        return Owners(
            np.where(inside, rows["code"][at], OUTSIDE),
            np.where(inside, rows["number"][at], -1),
            np.where(inside, rows["t0"][at], -1),
        )

    def busy(self, t0: int, t1: int) -> int | None:
        """Nanoseconds inside forwards between ``t0`` and ``t1`` by CUDA events; None without them."""
        if not self.timed:
            return None
        a, b = np.maximum(self._rows["begin"], t0), np.minimum(self._rows["finish"], t1)
        keep = b > a
        return union_length(a[keep], b[keep])

    def launched_until(self, t: int) -> int:
        """When what was launched before ``t`` (ns) ends on the GPU; 0 where forwards have no GPU times.

        Never, where no forward is known that was launched before: the hooks are younger, and what ran then is unseen.
        """
        r = self._rows
        before = r["t0"] < t
        if not self.timed:
            return 0
        return int(r["finish"][before].max()) if before.any() else 1 << 62

    def unfinished(self, t: int, since: int) -> dict[str, I64]:
        """Rows of forwards that were launched before ``t`` (ns) and ran beyond it on the GPU.

        ``since``: of those that began long before it, nobody asks. Only forwards with GPU times can tell.
        """
        first = max(0, int(np.searchsorted(self._rows["begin"], since)) - 8)
        r = {c: v[first:] for c, v in self._rows.items()}
        late = (r["gpu0"] > 0) & (r["t0"] <= t) & (r["gpu1"] > t - SLACK_NS)
        return {c: v[late] for c, v in r.items()}

    def rows(self, numbers: I64) -> dict[str, I64]:
        """The forwards of these running numbers, by when they began on the GPU: all columns, begin, finish, code."""
        if not len(numbers):
            return {c: v[:0] for c, v in self._rows.items()}
        found = np.isin(self._rows["number"], numbers)
        return {c: v[found] for c, v in self._rows.items()}

    def whole_until(self, t: int) -> int:
        """The latest end of a forward up to ``t``: what ran before it belongs to forwards that are over."""
        finish = self._rows["finish"]
        at = int(np.searchsorted(finish, t, side="right"))
        return int(finish[at - 1]) if at and self.timed else t

    def steps(self) -> tuple[I64, I64, I64, I64]:
        """(code, batch size, host start, length in ns) of forwards followed by the same runner's next step."""
        r = self._rows
        order = np.lexsort((r["ct"], r["runner"]))
        ct, runner, t0 = r["ct"][order], r["runner"][order], r["t0"][order]
        if len(ct) < 2:
            return EMPTY, EMPTY, EMPTY, EMPTY
        follows = (ct[1:] == ct[:-1] + 1) & (runner[1:] == runner[:-1])
        keep = order[:-1][follows]
        return r["code"][keep], r["bs"][keep], r["t0"][keep], (t0[1:] - t0[:-1])[follows]


def union_length(start: I64, end: I64, ordered: bool = False) -> int:
    """Length of the union of intervals. ``ordered``: they are ordered by start already."""
    if not len(start):
        return 0
    if ordered:
        s, e = start, end
    else:
        order = np.argsort(start, kind="stable")
        s, e = start[order], end[order]
    reach = np.maximum.accumulate(e)
    from_ = np.maximum(s[1:], reach[:-1])
    return int(e[0] - s[0]) + int(np.maximum(e[1:] - from_, 0).sum())
