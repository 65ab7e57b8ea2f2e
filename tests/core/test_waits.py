"""Which rank waits for which: joined turn by turn, from simulated TP groups and from arbitrary stages."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sgtop_core.model.axis import SHIFT
from sgtop_core.model.causes import NO_WORK, AllSources, Names
from sgtop_core.model.waits import APART_NS, NOTICED_NS, Waits
from sgtop_core.simulate.loop import Behaviour, Idle, Load, SimRank, Step, hello

from .feed import Feed, S

MS = 1_000_000
STAGES = ("other", "recv_requests", "process_input_requests", "get_next_batch_to_run", "run_batch")
RECV, INPUT = 1, 2


class Coupled(Feed):
    """A TP group whose ranks get their requests by a broadcast from the first, as on a real server."""

    def __init__(self, behaviour: Behaviour, tp: int = 2, **args) -> None:
        super().__init__(behaviour, tp=tp, device="cpu", graph_max_bs=None, **args)
        lead = self.sims["TP0"]
        for r in range(1, tp):
            self.sims[f"TP{r}"] = SimRank(r, behaviour, hello(r, tp=tp, device="cpu", now=self.now), self.now, 0, lead)


def late(slow_rank: int, ms: float) -> Behaviour:
    """Decode on the CPU; every fifth turn one rank spends ``ms`` more on the result."""

    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        slow = rank == slow_rank and turn % 5 == 4
        stages = {"process_batch_result": 90.0 + ms * 1e3 * slow}
        # the others' forward takes as long: its collectives wait inside
        extra = ms * 1e3 if slow_rank and rank != slow_rank and turn % 5 == 0 else 0
        return Step("DECODE", 8, 8, 3_000 + extra, graph=0, stages_us=stages, load=Load(8))

    return behave


def whole(f: Feed, label: str) -> None:
    gaps = f.rank(label=label).gaps
    assert gaps is not None
    assert sum(gaps.causes_ms.values()) == pytest.approx(gaps.quantiles_ms.total, rel=1e-9)
    assert sum(gaps.by_mode[m].total for m in gaps.by_mode) == pytest.approx(gaps.quantiles_ms.total, rel=0.05)


def test_the_rank_that_receives_late_is_named_and_what_it_did() -> None:
    f = Coupled(late(0, 6.0))
    f.run(10)
    steps = sum(m.steps for m in f.rank(label="TP1").modes.values())
    causes = f.rank(label="TP1").gaps.causes_ms
    assert causes["waiting for TP0"] == pytest.approx(steps / 5 * 6.1, rel=0.1)
    assert causes["recv_requests"] < 0.1 * causes["waiting for TP0"]
    assert not any(c.startswith("waiting") for c in f.rank(label="TP0").gaps.causes_ms)
    did = f.rank(label="TP0").holds_up_ms
    assert next(iter(did)) == "process_batch_result"
    assert sum(did.values()) == pytest.approx(causes["waiting for TP0"], rel=0.05)
    assert f.rank(label="TP1").holds_up_ms == {}
    whole(f, "TP0")
    whole(f, "TP1")
    a = f.ever["rank-holds-up"]
    assert a.rank == "TP0"
    assert a.title.startswith("TP0 holds up TP1: ")
    assert "meanwhile TP0 was: process_batch_result" in a.evidence
    assert "py-spy dump" in a.next


def test_all_seven_others_wait() -> None:
    f = Coupled(late(0, 6.0), tp=8)
    f.run(8)
    for r in range(1, 8):
        assert f.rank(label=f"TP{r}").gaps.causes_ms["waiting for TP0"] > 100
    assert f.ever["rank-holds-up"].title.startswith("TP0 holds up 7 of 7 others: ")


def test_a_late_rank_that_is_waited_for_inside_the_forward_is_no_gap() -> None:
    f = Coupled(late(1, 6.0))
    f.run(8)
    assert not any(c.startswith("waiting") for c in f.rank(label="TP0").gaps.causes_ms)
    assert "rank-holds-up" not in f.ever


def test_a_healthy_group_waits_for_nobody() -> None:
    f = Coupled(late(0, 0.0))
    f.run(8)
    assert f.ever == {}
    assert f.rank(label="TP1").gaps.causes_ms.get("waiting for TP0", 0.0) < 5


def test_ranks_of_other_dp_groups_are_not_joined() -> None:
    f = Feed(late(0, 6.0), dp=2)
    f.run(8)
    for label in ("DP0", "DP1"):
        assert not any(c.startswith("waiting") for c in f.rank(label=label).gaps.causes_ms)


def test_nobody_waits_for_a_rank_that_has_no_work() -> None:
    """The first rank sleeps until a request comes; the others sleep in the broadcast."""

    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        if rank == 0 and turn % 20 == 10:
            return Idle(40, Load(0))
        return Step("DECODE", 8, 8, 3_000, graph=0, load=Load(8))

    f = Coupled(behave)
    f.run(8)
    causes = f.rank(label="TP1").gaps.causes_ms
    assert causes[NO_WORK] > 500
    assert causes.get("waiting for TP0", 0.0) < 0.05 * causes[NO_WORK]
    assert "rank-holds-up" not in f.ever


def test_the_tail_of_a_group_waits_for_its_leader_only() -> None:
    """Ranks 4 to 7 of a group whose first rank is on another host: nothing is known of who was late."""
    f = Feed(late(0, 6.0), tp=4)
    for label in ("TP0", "TP1"):
        del f.sims[label], f.model.slots[label]
    f.run(6)
    assert not any(c.startswith("waiting") for c in f.rank(label="TP3").gaps.causes_ms)


# --- arbitrary turns ----------------------------------------------------------------------------------

TURN = st.tuples(st.integers(0, 5000), st.integers(1, 400), st.integers(0, 5000), st.integers(1, 4000))
"""µs: before ``recv_requests``, in it, in the stage behind it, in ``run_batch``."""


def build(ranks: list[list[tuple[int, int, int, int]]], meet: bool) -> tuple[Waits, AllSources, dict]:
    """A group that turns as told: nobody leaves ``recv_requests`` before rank 0 has entered; with ``meet`` nobody
    leaves the stage behind it before all have entered it.
    """
    sources = AllSources(Names())
    waits = Waits(sources)
    n = len(ranks)
    for r in range(n):
        waits.hello(r, f"TP{r}", {"rank": {"tp": r, "tp_size": n, "dp": 0, "pp": 0}}, STAGES)
    t = [10 * S] * n
    rows: dict[str, list[tuple[int, ...]]] = {"stage": [], "step": [], "forward": []}
    for k in range(len(ranks[0])):
        turn = [ranks[r][k] for r in range(n)]
        recv = [t[r] + turn[r][0] * 1000 for r in range(n)]
        left = [max(recv[r], recv[0]) + turn[r][1] * 1000 for r in range(n)]
        gather = max(left)
        done = [(gather if meet else left[r]) + turn[r][2] * 1000 for r in range(n)]
        for r in range(n):
            end = done[r] + turn[r][3] * 1000
            rows["stage"] += [(r, RECV, recv[r], left[r]), (r, INPUT, left[r], done[r])]
            rows["step"].append((r, k + 1, done[r], end))
            rows["forward"].append((r, k + 1, done[r] + 1))
            t[r] = end
    for name, table in rows.items():
        rank, *columns = (np.array(c, np.int64) for c in zip(*sorted(table, key=lambda x: (x[0], x[2])), strict=True))
        getattr(waits, name)(rank, *columns)
    waits.advance(max(t))
    return waits, sources, rows


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 4).flatmap(
        lambda n: st.integers(1, 6).flatmap(
            lambda k: st.lists(st.lists(TURN, min_size=k, max_size=k), min_size=n, max_size=n)
        )
    ),
    st.booleans(),
)
@example(  # ranks 1 and 2 wait for rank 0, and a microsecond longer for rank 3
    [[(0, 1, 0, 1)] * 4 + [(late, 1, 0, 1)] for late in (1597, 0, 0, 1598)], False
)
def test_only_time_before_the_other_arrived_is_waited(ranks: list, meet: bool) -> None:
    _, sources, rows = build(ranks, meet)
    end = max(s[3] for s in rows["stage"])
    line = sources.only("waiting", 0, end)
    names = sources.names.names
    by_turn: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    ends: dict[int, int] = {}
    for r, stage, a, b in rows["stage"]:
        by_turn.setdefault((r, stage), []).append((a, b, len(by_turn.get((r, stage), []))))
    for a, b, code in zip(line.t0.tolist(), line.t1.tolist(), line.code.tolist(), strict=True):
        r, whom = a // SHIFT, int(names[code].removeprefix("waiting for TP"))
        a, b = a - r * SHIFT, b - r * SHIFT
        assert whom != r
        # it lies in one stage of its own, and the other enters the same stage of the same turn as it ends, or later
        stage, turn = next((s, k) for s in (RECV, INPUT) for x, y, k in by_turn[r, s] if x <= a and b <= y)
        theirs = by_turn[whom, stage][turn]
        held_in_there = stage == RECV and theirs[1] - theirs[0] >= APART_NS
        assert b <= theirs[0] or (held_in_there and b <= theirs[1])
        # of two waits that overlap the later one shows only what it adds
        adds = ends.get(r) == a
        assert adds or b - a >= min(NOTICED_NS, APART_NS)
        ends[r] = b


@settings(max_examples=40, deadline=None)
@given(st.lists(TURN, min_size=1, max_size=6), st.integers(200, 9000))
def test_every_late_broadcast_is_found(turns: list, delay: int) -> None:
    """Both ranks do the same, but rank 0 comes ``delay`` µs later to its second turn."""
    turns = [*turns, turns[-1]]
    zero = [*turns[:-1], (turns[-1][0] + delay, *turns[-1][1:])]
    _, sources, _ = build([zero, turns], meet=False)
    line = sources.only("waiting", 0, 100 * S)
    assert [sources.names.names[c] for c in line.code.tolist()] == ["waiting for TP0"]
    assert int((line.t1 - line.t0).sum()) == delay * 1000


@pytest.mark.parametrize("slow", [1, 2])
def test_a_rank_that_all_meet_late_is_named(slow: int) -> None:
    """Rank ``slow`` enters a stage 5 ms after the others, and they leave it together: a collective was in it."""
    sources = AllSources(Names())
    waits = Waits(sources)
    for r in range(3):
        waits.hello(r, f"TP{r}", {"rank": {"tp": r, "tp_size": 3, "dp": 0, "pp": 0}}, STAGES)
    t = 10 * S
    enter = np.array([t + MS + 5 * MS * (r == slow) for r in range(3)])
    leave = np.full(3, t + 8 * MS)
    rank, one = np.arange(3), np.ones(3, np.int64)
    order = np.repeat(rank, 2)
    waits.stage(order, np.tile([RECV, INPUT], 3), np.stack([one * t, enter], 1).ravel(),
                np.stack([one * t + MS // 10, leave], 1).ravel())  # fmt: skip
    waits.step(rank, one, leave, leave + MS)
    waits.forward(rank, one, leave + MS // 10)
    waits.advance(t + S)
    line = sources.only("waiting", 0, 100 * S)
    assert [sources.names.names[c] for c in line.code.tolist()] == [f"waiting for TP{slow}"] * 2
    assert (line.t1 - line.t0).tolist() == [5 * MS] * 2
