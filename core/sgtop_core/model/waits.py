"""Who waits for whom: the ranks of one group, joined turn by turn of their event loops.

All ranks of a TP group make the same steps, so ``forward_ct`` says which turns belong together. Two things are seen:

* ``recv_requests`` is a broadcast from the group's first rank. Nobody leaves it before that rank has entered its own:
  until then the others wait for it.
* Wherever ranks meet (collectives over the group between two forwards: grammars, hierarchical cache, disaggregation),
  those that entered a stage apart leave it together. The last to enter is the one that the others waited for. Ranks
  that meet *inside* a forward enter ``run_batch`` apart and start their forwards apart: that wait is the forward's.

While the rank that is waited for has no work itself, nobody waits for it: there is no work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, Bool, split
from sgtop_core.model.axis import MAX_RANKS, firsts, lasts, shifted
from sgtop_core.model.causes import PATIENCE_NS, WAITING, AllSources
from sgtop_core.model.windows import TICK_NS

NOTICED_NS = 100_000
"""A wait in the broadcast that is shorter than this stays with its stage: it is what a broadcast costs."""
LONG_NS = 1_000_000
"""A first rank that stays in its own ``recv_requests`` for longer than this is held up in there, and all with it."""
APART_NS = 1_000_000
"""Ranks entered a stage apart when this lies between them; they left together within a quarter of it."""

SIZE = 1 << 12
"""Steps of each rank that are remembered."""
_KEEP_NS = 10_000_000_000
_RECV, _MEETING = "recv_requests", ("process_input_requests", "process_queue", "get_next_batch_to_run")
_KINDS = {name: k for k, name in enumerate((_RECV, *_MEETING))}
_R, _R1, _E, _T1, _F = range(5)
"""What is remembered of a step: its ``recv_requests`` (begin, end), entry and end of ``run_batch``, first forward."""


@dataclass(frozen=True, slots=True)
class Held:
    """Time in which a rank was waited for, by what it did; parallel arrays."""

    rank: I64
    cause: I64
    tick: I64
    """Number of the tick (t // TICK_NS)."""
    ns: I64


@dataclass(slots=True)
class _Group:
    """Ranks that make the same steps."""

    members: list[int] = field(default_factory=list)
    """Indices, in the order of their TP ranks."""
    lead: int | None = None
    """Place in ``members`` of the rank that broadcasts; None where it is not on this host."""
    whole: bool = False
    """All its ranks are seen."""
    done: int = -1
    """``forward_ct`` up to which it was looked at."""


@dataclass(frozen=True, slots=True)
class _Waits:
    """``rank`` waits from ``a`` to ``b`` for ``whom``; parallel arrays."""

    rank: I64
    a: I64
    b: I64
    whom: I64


class Waits:
    """Feeds the source ``waiting`` of all ranks. ``advance`` after the rows of a tick were given."""

    def __init__(self, sources: AllSources) -> None:
        self._sources = sources
        self._groups: dict[tuple[int, int], _Group] = {}
        self._of: dict[int, tuple[tuple[int, int], int, int]] = {}
        """Index → (group, place in it, size of the group)."""
        self._labels: dict[int, str] = {}
        self._ct = np.full(MAX_RANKS * SIZE, -1, np.int64)
        self._at = np.full((5, MAX_RANKS * SIZE), -1, np.int64)
        self._newest = np.full(MAX_RANKS, -1, np.int64)
        self._entry = np.zeros(MAX_RANKS, np.int64)
        self._kind = np.full((MAX_RANKS, 32), -1, np.int64)
        self._joined = np.zeros(MAX_RANKS, np.bool_)
        """Ranks that have others beside them."""
        self._rows: list[list[tuple[I64, I64, I64]]] = [[] for _ in _KINDS]
        """Stages by kind, tick by tick: (rank, t0, t1)."""
        self._held: list[tuple[I64, I64, I64]] = []
        """Waits whose cause is still to be found: (rank that was waited for, from, to)."""

    # --- who is there ---------------------------------------------------------------------------------

    def hello(self, i: int, label: str, hello: Mapping[str, Any], stages: Sequence[str]) -> None:
        """Rank ``i`` begins anew; ``stages`` are the names of its stage numbers."""
        self.clear(i)
        own, args = (x if isinstance(x, Mapping) else {} for x in (hello.get("rank"), hello.get("args")))

        def number(name: str, least: int) -> int:
            v = own.get(name)
            return max(v, least) if isinstance(v, int) else least

        size = number("tp_size", 1)
        if args.get("enable_dp_attention"):  # the ranks of one attention group run the same batches
            size = max(size // number("dp_size", 1), 1)
        self._of[i] = (number("dp", 0), number("pp", 0)), number("tp", 0) % size, size
        self._labels[i] = label
        for k, name in enumerate(stages):
            self._kind[i, k] = _KINDS.get(name, -1)
        self._regroup()

    def clear(self, i: int) -> None:
        """Forget a rank."""
        if self._of.pop(i, None) is None:
            return
        self._ct[i * SIZE : (i + 1) * SIZE] = -1
        self._newest[i], self._entry[i], self._kind[i] = -1, 0, -1
        self._held = [h for h in self._held if not (h[0] == i).any()]
        for rows in self._rows:
            rows[:] = [tuple(x[r[0] != i] for x in r) for r in rows]
        self._regroup()

    def _regroup(self) -> None:
        self._groups = {}
        places: dict[tuple[int, int], dict[int, int]] = {}
        for i, (key, place, _) in self._of.items():
            places.setdefault(key, {})[place] = i
        self._joined[:] = False
        for key, by_place in places.items():
            members = [by_place[p] for p in sorted(by_place)]
            whole = len(members) == self._of[members[0]][2]
            lead = 0 if 0 in by_place else None
            joined = len(members) > 1 and (whole or lead is not None)
            if joined:
                self._groups[key] = _Group(members, lead, whole)
            for i in members:
                self._joined[i] = joined
                self._sources.expect("waiting", i, joined)

    # --- rows of a tick -------------------------------------------------------------------------------

    def stage(self, rank: I64, stage: I64, t0: I64, t1: I64) -> None:
        """Stages of the main threads, rank after rank."""
        if not self._groups:
            return
        kind = self._kind[rank, stage]
        for k, rows in enumerate(self._rows):
            at = np.flatnonzero(kind == k)
            if len(at):
                rows.append((rank[at], t0[at], t1[at]))

    def step(self, rank: I64, ct: I64, t0: I64, t1: I64) -> None:
        """Steps, rank after rank."""
        if not self._groups:
            return
        at = rank * SIZE + ct % SIZE
        first = firsts(rank)
        owner, last = rank[first], lasts(rank, first)
        begin, end = self._recv_of(rank, t0)
        self._ct[at] = ct
        self._at[_R, at], self._at[_R1, at], self._at[_E, at], self._at[_T1, at] = begin, end, t0, t1
        self._newest[owner] = np.maximum(self._newest[owner], np.maximum.reduceat(ct, first))
        self._entry[owner] = t0[last]

    def _recv_of(self, rank: I64, entry: I64) -> tuple[I64, I64]:
        """The ``recv_requests`` of the turn that made each step; -1 where none is known."""
        chunks = self._rows[0]
        if not chunks:
            return np.full(len(rank), -1), np.full(len(rank), -1)
        owner, t0, t1 = (np.concatenate([c[k] for c in chunks]) for k in range(3))
        place = shifted(t0, owner)
        if len(chunks) > 1:
            order = np.argsort(place, kind="stable")
            owner, t0, t1, place = owner[order], t0[order], t1[order], place[order]
        at = np.searchsorted(place, shifted(entry, rank), "right") - 1
        mine = (at >= 0) & (owner[at] == rank)
        mine[1:] &= at[1:] != at[:-1]  # a step inside another has no turn of its own
        begin, end = np.where(mine, t0[at], -1), np.where(mine, t1[at], -1)
        latest = self._entry.copy()
        np.maximum.at(latest, rank, entry)
        later = t0 > latest[owner]
        chunks[:] = [(owner[later], t0[later], t1[later])] if later.any() else []
        return begin, end

    def forward(self, rank: I64, ct: I64, t0: I64) -> None:
        """Forwards, in the order of their starts on the host."""
        if self._groups:
            at = (rank * SIZE + ct % SIZE)[::-1]
            self._at[_F, at] = t0[::-1]  # of several of a step the first

    # --- once a tick ----------------------------------------------------------------------------------

    def advance(self, end: int) -> None:
        """Join what is known at ``end`` (ns)."""
        for group in self._groups.values():
            newest = self._newest[group.members]
            hi = int(newest.min())
            if int(newest.max()) - hi > SIZE // 2:  # one of them is gone, or loses its rows
                hi = int(newest.max())
            lo = max(group.done + 1, hi - SIZE // 2, 0)
            if hi >= lo:
                self._join(group, np.arange(lo, hi + 1))
                group.done = hi
        for rows in self._rows:
            while rows and (not len(rows[0][2]) or int(rows[0][2].max()) < end - _KEEP_NS):
                rows.pop(0)

    def _join(self, group: _Group, cts: I64) -> None:
        members = np.array(group.members)
        at = members[:, None] * SIZE + (cts % SIZE)[None, :]
        known = self._ct[at] == cts
        recv, left, entry, forward = (self._at[k][at] for k in (_R, _R1, _E, _F))
        found: list[_Waits] = []
        met = known & (recv >= 0)
        if group.lead is not None:
            found.append(_broadcast(members, group.lead, recv, left, met))
        if group.whole:
            turns: Bool = np.asarray(met.all(axis=0))
            found.append(_meeting(members, recv, left, turns, but=group.lead))
            started: Bool = np.asarray((known & (forward >= entry)).all(axis=0))
            found.append(_meeting(members, entry, forward, started))
            slow = np.flatnonzero(turns & ((entry - recv).min(axis=0) >= APART_NS))
            if len(slow):
                for k in range(1, len(_KINDS)):
                    a, b = self._stage_of(k, members, recv[:, slow], entry[:, slow])
                    found.append(_meeting(members, a, b, np.asarray((a >= 0).all(axis=0))))
        waits = _Waits(*(np.concatenate([getattr(w, c) for w in found]) for c in ("rank", "a", "b", "whom")))
        if len(waits.rank):
            self._tell(waits)
        ends = np.where(known, self._at[_T1][at], -1).max(axis=1)
        self._sources.reported("waiting", members, ends)

    def _stage_of(self, kind: int, members: I64, begin: I64, end: I64) -> tuple[I64, I64]:
        """The last stage of a kind that began between ``begin`` and ``end`` of each rank and turn; -1 where none."""
        rows = self._rows[kind]
        none = np.full(begin.shape, -1, np.int64)
        if not rows:
            return none, none
        rank, t0, t1 = (np.concatenate([r[k] for r in rows]) for k in range(3))
        place = shifted(t0, rank)
        order = np.argsort(place, kind="stable")
        place, t0, t1 = place[order], t0[order], t1[order]
        owner = np.broadcast_to(members[:, None], begin.shape)
        at = np.searchsorted(place, shifted(end, owner), "right") - 1
        mine = (at >= 0) & (place[at] >= shifted(begin, owner))
        return np.where(mine, t0[at], -1), np.where(mine, t1[at], -1)

    def _tell(self, w: _Waits) -> None:
        names = self._sources.names
        code = np.zeros(MAX_RANKS, np.int64)
        for i in np.unique(w.whom).tolist():
            code[i] = names.code(WAITING + self._labels[i])
        a, b, cause = self._without_work(w, code[w.whom])
        rank, whom = np.tile(w.rank, 3), np.tile(w.whom, 3)
        real = b > a
        rank, whom, a, b, cause = (x[real] for x in (rank, whom, a, b, cause))
        order = np.lexsort((a, rank))
        self._sources.push("waiting", a[order], b[order], cause[order], rank[order])
        held = np.flatnonzero(cause == code[whom])
        if len(held):
            self._held.append(_union(whom[held], a[held], b[held]))

    def _without_work(self, w: _Waits, code: I64) -> tuple[I64, I64, I64]:
        """Each wait in three (some of no length): before, while, and after the other had no work; start, end, cause."""
        idle = self._sources.only("idle", int(w.a.min()), int(w.b.max()))
        if not len(idle):
            return np.tile(w.a, 3), np.concatenate([w.b, w.a, w.a]), np.tile(code, 3)
        lo = np.searchsorted(idle.t1, shifted(w.a, w.whom), "right")
        hi = np.searchsorted(idle.t0, shifted(w.b, w.whom), "left") - 1
        some = lo <= hi
        lo, hi = np.where(some, lo, 0), np.where(some, hi, 0)
        back = shifted(np.zeros_like(w.whom), w.whom)
        begin = np.where(some, np.maximum(idle.t0[lo] - back, w.a), w.b)
        end = np.where(some, np.minimum(idle.t1[hi] - back, w.b), w.b)
        return (
            np.concatenate([w.a, begin, end]),
            np.concatenate([begin, end, w.b]),
            np.concatenate([code, idle.code[lo], code]),
        )

    def held(self, now: int) -> Held | None:
        """What those did that were waited for, as far as it is known at ``now`` (ns); None where there is nothing."""
        if not self._held:
            return None
        rank, a, b = (np.concatenate([h[k] for h in self._held]) for k in range(3))
        ready = b <= np.maximum(self._sources.known_until(), now - PATIENCE_NS)[rank]
        self._held = [] if ready.all() else [(rank[~ready], a[~ready], b[~ready])]
        if not ready.any():
            return None
        rank, a, b = rank[ready], a[ready], b[ready]
        which, tick, pa, pb = split(a, b, TICK_NS)
        parts = self._sources.partition(rank[which], pa, pb)
        return Held(rank[which[parts.which]], parts.code, tick[parts.which], parts.ns)


_NOBODY = _Waits(EMPTY, EMPTY, EMPTY, EMPTY)


def _broadcast(members: I64, lead: int, begin: I64, end: I64, known: Bool) -> _Waits:
    """Waits in ``recv_requests`` for the rank that broadcasts; arrays of (rank, turn)."""
    start, stop = begin[lead], end[lead]
    until = np.minimum(end, np.where(stop - start >= LONG_NS, stop, start))
    ok = known & known[lead] & (end >= start) & (until - begin >= NOTICED_NS)
    if not ok.any():
        return _NOBODY
    who, turn = np.nonzero(ok)
    others = who != lead
    who, turn = who[others], turn[others]
    return _Waits(members[who], begin[who, turn], until[who, turn], np.full(len(who), members[lead]))


def _meeting(members: I64, begin: I64, end: I64, turns: Bool, but: int | None = None) -> _Waits:
    """Waits for the last to enter a stage by those that left it with the last; arrays of (rank, turn)."""
    late = begin.max(axis=0)
    wait = late - begin
    ok = turns & (wait >= APART_NS) & (end >= late)
    if not ok.any():
        return _NOBODY
    last = begin.argmax(axis=0)
    ok &= np.abs(end - np.take_along_axis(end, last[None, :], 0)) <= wait // 4
    if but is not None:
        ok &= last != but
    who, turn = np.nonzero(ok)
    return _Waits(members[who], begin[who, turn], late[turn], members[last[turn]])


def _union(rank: I64, a: I64, b: I64) -> tuple[I64, I64, I64]:
    """Intervals of ranks without what overlaps."""
    order = np.lexsort((a, rank))
    rank, a, b = rank[order], a[order], b[order]
    end = np.maximum.accumulate(shifted(b, rank)) - shifted(np.zeros_like(rank), rank)
    same = np.concatenate([[False], rank[1:] == rank[:-1]])
    before = np.where(same, np.concatenate([[0], end[:-1]]), 0)
    a = np.maximum(a, before)
    real = b > a
    return rank[real], a[real], b[real]
