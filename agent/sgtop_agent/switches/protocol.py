"""The agreement of a group's ranks on one step, without I/O: one word, who may write it, what each rank makes of it.

The word W is 64 bits: ``after`` (8) | ``before`` (8) | ``N`` (48). A *state* has a bit for each switch that is flipped
away from what the server was started with; 0: everything as it was started. Every rank, at each boundary (entry to
``get_next_batch_to_run``), is in the state ``after`` if its ``forward_ct`` has reached N, else in ``before``.

Why one store is enough. A turn of the event loop begins with a broadcast from the leader, so no rank can pass the
boundary of the turn after the leader's before the leader has been there: while the leader is at a boundary with
``forward_ct`` = c, every other rank has evaluated boundaries with at most c.

* A flip is stored with N = c + AHEAD, so nobody has passed N; and as the flip before is in force on every rank, a rank
  that is behind computes ``before`` from the new word, which is what the old word gave.
* A pending flip can be called off while c ≤ N - 2: nobody has evaluated at N.
* In a turn in which the leader found no batch, no rank can run one before the leader's next broadcast. A way back
  stored there with N = c is in force at once, and a rank that is still behind (below c) computes ``before``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

AHEAD = 4
"""Steps from the store to the step at which a flip takes effect."""
LATE = 3
"""Steps that a rank may be behind the leader when a flip is stored; more, or any ahead, and they do not count alike."""
CT_BITS = 48
CT_MASK = (1 << CT_BITS) - 1
STATE_MASK = 0xFF


class Word(NamedTuple):
    """W taken apart."""

    after: int
    before: int
    n: int


class Slot(NamedTuple):
    """What a rank says of itself. ``seen``: forward_ct at its last boundary; ``applied_at``: where its state began."""

    armed: bool
    applied: int
    applied_at: int
    seen: int
    leaving: bool = False
    broken: bool = False


class Decision(NamedTuple):
    """What the leader does at a boundary. ``store``: a new W; ``why``: what it waits for, or why it refuses."""

    store: int | None = None
    why: str = ""
    refuse: bool = False


NOTHING = Decision()


def pack(after: int, before: int, n: int) -> int:
    """W."""
    return (after & STATE_MASK) << 56 | (before & STATE_MASK) << 48 | n & CT_MASK


def unpack(word: int) -> Word:
    """The parts of W."""
    return Word(word >> 56, word >> CT_BITS & STATE_MASK, word & CT_MASK)


def state_at(word: int, ct: int) -> int:
    """The state of a rank at a boundary with ``forward_ct`` = ``ct``."""
    return word >> 56 if ct >= word & CT_MASK else word >> CT_BITS & STATE_MASK


def settled(word: int, slots: Sequence[Slot]) -> bool:
    """Whether every rank has reached N and is in ``after``: what W says now will not change for anyone."""
    after, _, n = unpack(word)
    if n == 0:
        return True  # as made: 0 at every step, for ranks that are not there yet too
    return all(s.armed and s.applied == after and s.seen >= n for s in slots)


def unlike(slots: Sequence[Slot], ct: int) -> str:
    """Why ranks do not count steps alike, seen from the leader's boundary at ``ct``; empty: they do."""
    for i, s in enumerate(slots):
        if s.armed and not ct - LATE <= s.seen <= ct:
            return f"ranks do not count steps alike: rank {i} is at step {s.seen}, the leader at {ct}"
    return ""


def at_boundary(word: int, wanted: int, slots: Sequence[Slot], ct: int) -> Decision:
    """The leader at a boundary, after its own evaluation: what to store so that the group comes to ``wanted``."""
    after, before, n = unpack(word)
    if wanted == after:
        return NOTHING
    if ct < n:
        if ct <= n - 2:
            return Decision(pack(before, before, ct))
        return Decision(why="the flip before takes effect at the next step")
    if not settled(word, slots):
        return Decision(why="the flip before is not yet in force on every rank")
    if wanted & ~after:  # something is flipped away: only where everything is in order
        broken = [i for i, s in enumerate(slots) if s.broken]
        if broken:
            return Decision(why=f"rank {broken[0]} cannot switch any more", refuse=True)
        leaving = [i for i, s in enumerate(slots) if s.leaving]
        if leaving:
            return Decision(why=f"sgtop is leaving rank {leaving[0]}", refuse=True)
        missing = [str(i) for i, s in enumerate(slots) if not s.armed]
        if missing:
            return Decision(why=f"waiting for rank {', '.join(missing)}")
        why = unlike(slots, ct)
        if why:
            return Decision(why=why, refuse=True)
    return Decision(pack(wanted, after, ct + AHEAD))


def at_idle(word: int, wanted: int, slots: Sequence[Slot], ct: int) -> Decision:
    """The leader in a turn that found no batch, with nothing waiting: ways back take effect at once."""
    after, before, n = unpack(word)
    if ct < n:
        if wanted != after:
            return Decision(pack(before, before, ct))
        return NOTHING if after & ~before else Decision(pack(after, before, ct))
    if wanted == after or wanted & ~after or not settled(word, slots):
        return NOTHING
    return Decision(pack(wanted, after, ct))


def can_close(word: int, wanted: int, slots: Sequence[Slot]) -> bool:
    """Whether the page may be closed: everything is as it was started, for every rank and for good."""
    return wanted == 0 and word >> 56 == 0 and settled(word, slots)
