"""The agreement between ranks, checked exhaustively: every interleaving of a leader's and a member's turns.

The model is what SGLang guarantees and no more: a turn begins with a broadcast from the leader, so a member may enter
turn k once the leader has; it may stay behind as it likes. Whether a turn finds a batch is the same for all. The leader
reads the slots and stores the word in two steps, and the member may run in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from sgtop_agent.switches import protocol
from sgtop_agent.switches.protocol import Slot

RECEIVE, READ, STORE, FINISH, IDLE_STORE = range(5)


class Rank(NamedTuple):
    turn: int
    phase: int
    ct: int
    applied: int
    at: int
    seen: int
    armed: bool


class World(NamedTuple):
    word: int
    wanted: int
    changes: int
    """how often ``wanted`` may still change"""
    leader: Rank
    member: Rank
    decided: int
    """what the leader is about to store; -1 nothing"""
    ahead: tuple[tuple[bool, int], ...]
    """turns that the leader has finished and the member has not: (found a batch, the leader's state in it)"""


START = Rank(0, RECEIVE, 0, 0, 0, 0, False)


def slots(w: World) -> list[Slot]:
    return [Slot(r.armed, r.applied, r.at, r.seen) for r in (w.leader, w.member)]


def evaluate(r: Rank, word: int) -> Rank:
    state = protocol.state_at(word, r.ct)
    changed = state != r.applied
    return r._replace(applied=state, at=r.ct if changed else r.at, seen=r.ct, armed=True)


def leader_steps(w: World, turns: int) -> Iterator[World]:
    r = w.leader
    if r.phase == RECEIVE:
        if r.turn < turns and len(w.ahead) < 3:
            yield w._replace(leader=r._replace(turn=r.turn + 1, phase=READ))
    elif r.phase == READ:
        r = evaluate(r, w.word)
        now = w._replace(leader=r)
        decision = protocol.at_boundary(w.word, w.wanted, slots(now), r.ct)
        decided = -1 if decision.store is None else decision.store
        yield now._replace(leader=r._replace(phase=STORE), decided=decided)
    elif r.phase == STORE:
        word = w.word if w.decided < 0 else w.decided
        yield w._replace(word=word, decided=-1, leader=r._replace(phase=FINISH))
    elif r.phase == FINISH:
        ran = r._replace(phase=RECEIVE, ct=r.ct + 1)
        yield w._replace(leader=ran, ahead=(*w.ahead, (True, r.applied)))
        decision = protocol.at_idle(w.word, w.wanted, slots(w), r.ct)
        decided = -1 if decision.store is None else decision.store
        yield w._replace(leader=r._replace(phase=IDLE_STORE), decided=decided, ahead=(*w.ahead, (False, r.applied)))
    else:
        word = w.word if w.decided < 0 else w.decided
        yield w._replace(word=word, decided=-1, leader=r._replace(phase=RECEIVE))


def member_steps(w: World) -> Iterator[World]:
    r = w.member
    if r.phase == RECEIVE:
        if r.turn < w.leader.turn:
            yield w._replace(member=evaluate(r._replace(turn=r.turn + 1, phase=FINISH), w.word))
    elif w.ahead:  # what the turn found is known once the leader has found it
        (batch, state), *rest = w.ahead
        if batch:
            assert r.applied == state, f"turn {r.turn}: the leader in state {state:b}, the member in {r.applied:b}; {w}"
        yield w._replace(member=r._replace(phase=RECEIVE, ct=r.ct + batch), ahead=tuple(rest))


def steps(w: World, turns: int, states: tuple[int, ...]) -> Iterator[World]:
    yield from leader_steps(w, turns)
    yield from member_steps(w)
    if w.changes:
        for wanted in states:
            if wanted != w.wanted:
                yield w._replace(wanted=wanted, changes=w.changes - 1)


def explore(turns: int, changes: int, states: tuple[int, ...]) -> tuple[int, set[tuple[int, int]]]:
    """All reachable worlds; how many, and the (applied of leader, of member) that were seen together at rest."""
    start = World(0, 0, changes, START, START, -1, ())
    seen = {start}
    todo = deque([start])
    together: set[tuple[int, int]] = set()
    while todo:
        w = todo.pop()
        if w.leader.phase == RECEIVE and w.leader.turn == w.member.turn and not w.ahead:
            together.add((w.leader.applied, w.member.applied))
        for after in steps(w, turns, states):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), together


@pytest.mark.parametrize(("turns", "changes", "states"), [(8, 3, (0, 1)), (7, 3, (0, 1, 3))])
def test_no_batch_ever_runs_on_ranks_in_different_states(
    monkeypatch: pytest.MonkeyPatch, turns: int, changes: int, states: tuple[int, ...]
) -> None:
    monkeypatch.setattr(protocol, "AHEAD", 2)  # the least that is safe: more happens in as many turns
    worlds, together = explore(turns, changes, states)
    assert worlds > 20_000
    assert (1, 1) in together, "a flip takes effect"


def test_the_margin_of_the_product_is_checked_too() -> None:
    worlds, together = explore(8, 2, (0, 1))
    assert worlds > 20_000
    assert (1, 1) in together


@pytest.mark.parametrize("ahead", [0, -1])
def test_the_check_finds_a_word_that_takes_effect_too_soon(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    monkeypatch.setattr(protocol, "AHEAD", ahead)
    with pytest.raises(AssertionError, match="the leader in state"):
        explore(6, 2, (0, 1))


def test_the_check_finds_a_flip_that_does_not_wait_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "AHEAD", 1)
    monkeypatch.setattr(protocol, "settled", lambda word, slots: all(s.armed for s in slots))
    monkeypatch.setattr(protocol, "unlike", lambda slots, ct: "")
    with pytest.raises(AssertionError, match="the leader in state"):
        explore(8, 3, (0, 1))


def test_word_and_states() -> None:
    word = protocol.pack(0b101, 0b010, 1 << 40)
    assert protocol.unpack(word) == (0b101, 0b010, 1 << 40)
    assert protocol.state_at(word, (1 << 40) - 1) == 0b010
    assert protocol.state_at(word, 1 << 40) == 0b101
    assert protocol.state_at(0, 0) == 0


def ranks(*seen: int, applied: int = 0, armed: bool = True, **more: bool) -> list[Slot]:
    return [Slot(armed, applied, 0, s, **more) for s in seen]


@pytest.mark.parametrize(
    ("slots", "why", "refuse"),
    [
        (ranks(10, 11), "do not count steps alike", True),
        (ranks(10, 6), "do not count steps alike", True),
        ([*ranks(10), *ranks(0, armed=False)], "waiting for rank 1", False),
        ([*ranks(10), *ranks(10, leaving=True)], "leaving rank 1", True),
        ([*ranks(10), *ranks(10, broken=True)], "rank 1 cannot switch", True),
    ],
)
def test_what_a_flip_waits_for_or_is_refused_for(slots: list[Slot], why: str, refuse: bool) -> None:
    decision = protocol.at_boundary(0, 1, slots, 10)
    assert decision.store is None
    assert why in decision.why
    assert decision.refuse is refuse


def test_a_way_back_asks_for_less_than_a_flip() -> None:
    word = protocol.pack(1, 0, 5)
    slots = [*ranks(10, applied=1), *ranks(9, applied=1, leaving=True)]
    assert protocol.at_boundary(word, 0, slots, 10).store == protocol.pack(0, 1, 10 + protocol.AHEAD)
    assert protocol.at_idle(word, 0, slots, 10).store == protocol.pack(0, 1, 10)


def test_pending_flips_are_called_off_until_two_steps_before() -> None:
    word = protocol.pack(1, 0, 14)
    assert protocol.at_boundary(word, 0, ranks(12, 12), 12).store == protocol.pack(0, 0, 12)
    assert protocol.at_boundary(word, 0, ranks(13, 13), 13).store is None
    assert protocol.at_idle(word, 0, ranks(13, 13), 13).store == protocol.pack(0, 0, 13)


def test_flips_forward_wait_for_steps_while_idle() -> None:
    assert protocol.at_idle(0, 1, ranks(3, 3), 3) == protocol.NOTHING


def test_closing() -> None:
    assert protocol.can_close(0, 0, ranks(0, 0, armed=False))
    assert not protocol.can_close(0, 1, ranks(0, 0))
    back = protocol.pack(0, 1, 20)
    assert not protocol.can_close(back, 0, ranks(20, 19))
    assert protocol.can_close(back, 0, ranks(20, 20))
