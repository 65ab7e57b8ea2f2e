"""Named situations of a server, as behaviours for ``loop.SimRank``. The figures are those of public reports."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sgtop_core.simulate.loop import Behaviour, Idle, Load, Step


@dataclass(frozen=True, slots=True)
class Scene:
    """A situation: how many ranks, what their hello says, what they do."""

    name: str
    says: str
    behaviour: Behaviour
    tp: int = 1
    dp: int = 1
    hello: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``loop.hello``."""


def decode_bound(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """Healthy: bs about 48 with graphs, a prefill now and then, the cache hit by two thirds."""
    running = 48 + int(6 * rng.random())
    load = Load(running, rng.randint(0, 1), 0.05, 160_000, 120_000)
    if turn % 40 == 0:
        return Step("EXTEND", 2, 680, 14_000, graph=0, cached=1_350, load=load)
    gc = (0, 0.6) if turn % 400 == 7 else None
    return Step("DECODE", running, running, 7_800, finished=int(turn % 40 == 20), load=load, gc=gc)


def prefill_bound(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """Healthy: long prompts in full chunks, mixed with decode."""
    load = Load(24, rng.randint(0, 3), 0.4, 220_000, 60_000)
    if turn % 3 != 2:
        return Step("MIXED", 24 + 3, 8_192, 148_000, graph=0, cached=2_300, decode_tokens=24, load=load)
    return Step("DECODE", 24, 24, 7_200, finished=rng.randint(0, 2), load=load)


def eager_fallback(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """Largest captured batch 32, running batches of median 67, p95 96 (#33483): step time about four times."""
    bs = 96 if rng.random() < 0.05 else rng.randint(52, 82)
    load = Load(bs, 4, 0.3, 210_000, 80_000)
    if turn % 25 == 0:
        return Step("EXTEND", 3, 2_048, 38_000, graph=0, cached=3_200, load=load)
    graph = int(bs <= 32)
    return Step("DECODE", bs, bs, 9_000 if graph else 23_000, launch_us=300 if graph else 21_000, graph=graph,
                finished=int(turn % 9 == 0), load=load)  # fmt: skip


def straggler(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """TP 8, one rank's collections of generation 2 hold all of them up (PR 28067)."""
    load = Load(64, 2, 0.1, 180_000, 90_000)
    hit = turn % 60 == 30
    if turn % 50 == 0:
        return Step("EXTEND", 4, 4_096, 41_000, graph=0, cached=4_096, load=load)
    if hit and rank == 3:
        return Step("DECODE", 64, 64, 9_000, gc=(2, 320.0), load=load)
    # the others launch in time, and their all-reduce waits on the GPU for rank 3
    return Step("DECODE", 64, 64, 9_000 + (320_000 if hit else 0), load=load, finished=int(turn % 30 == 0))


def speculative(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """EAGLE: three draft forwards and a verify a step, about 2.6 tokens accepted a request."""
    load = Load(16, 0, 0.0, 90_000, 150_000)
    if turn % 60 == 0:
        return Step("EXTEND", 2, 1_024, 16_000, graph=0, cached=3_000, load=load)
    return Step(
        "DECODE", 16, -1, 9_500, draft=(("DECODE", 700), ("DECODE", 700), ("DRAFT_EXTEND", 900)), launch_us=900,
        forward_mode="TARGET_VERIFY", accepted=sum(rng.randint(1, 4) for _ in range(16)), load=load,
        finished=int(turn % 30 == 0),
    )  # fmt: skip


def pd_prefill(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """The prefill server of a disaggregated pair."""
    load = Load(0, rng.randint(1, 5), 0.3, 260_000, 50_000, pd={"bootstrap": 2, "inflight": 3})
    return Step("EXTEND", 3, 8_192, 120_000, graph=0, cached=5_000, finished=3, load=load)


def pd_decode(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """The decode server of a disaggregated pair: requests come in prebuilt."""
    load = Load(80, 0, 0.0, 240_000, 0, pd={"prealloc": 1, "transfer": 4})
    if turn % 30 == 0:
        return Step("PREBUILT", 2, 0, 5, launch_us=30, graph=-1, load=load)
    return Step("DECODE", 80, 80, 10_400, finished=int(turn % 12 == 0), load=load)


def idle(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """No traffic: the loop spins."""
    return Idle(250, Load(0, 0, 0.0, 0, 210_000))


def no_gpu(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """A server on the CPU: forwards block the host."""
    load = Load(8, 0, 0.0, 5_000, 9_000, 16_384)
    if turn % 200 > 180:
        return Idle(20, Load(0, 0, 0.0, 0, 12_000, 16_384))
    if turn % 15 == 0:
        return Step("EXTEND", 1, 180, 9_000, graph=0, cached=60, load=load)
    return Step("DECODE", 8, 8, 3_500, graph=0, load=load, finished=int(turn % 25 == 0))


def starved(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """Prefill always first: 80 prefills for each decode, 250 streams waiting (#32549)."""
    load = Load(250, 60, 9.0, 300_000, 30_000)
    if turn % 81 == 80:
        return Step("DECODE", 250, 250, 19_000, load=load)
    return Step("EXTEND", 1, 7_000, 300_000, graph=0, cached=1_000, load=load)


def host_bound(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """2 ms of GPU idle before the first kernel of each replay (#5593: 32B, TP 4, bs 64)."""
    load = Load(64, 0, 0.0, 200_000, 90_000)
    return Step("DECODE", 64, 64, 6_500, launch_us=8_600, load=load, finished=int(turn % 20 == 0))


SCENES: Mapping[str, Scene] = {
    s.name: s
    for s in (
        Scene("decode-bound", "healthy, decode with graphs", decode_bound),
        Scene("prefill-bound", "healthy, long prompts", prefill_bound),
        Scene("eager-fallback", "decode above the largest captured batch", eager_fallback, tp=2,
              hello={"graph_max_bs": 32}),
        Scene("straggler", "TP 8, one rank's garbage collections stop all", straggler, tp=8),
        Scene("speculative", "EAGLE with three draft steps", speculative, hello={"speculative": True}),
        Scene("pd-prefill", "prefill server of a PD pair", pd_prefill,
              hello={"args": {"disaggregation_mode": "prefill"}}),
        Scene("pd-decode", "decode server of a PD pair", pd_decode, hello={"args": {"disaggregation_mode": "decode"}}),
        Scene("idle", "no traffic", idle),
        Scene("no-gpu", "a server on the CPU", no_gpu, hello={"device": "cpu", "graph_max_bs": None}),
        Scene("starved", "decode starved by prefill", starved),
        Scene("host-bound", "decode waits for the host", host_bound, tp=4),
    )
}  # fmt: skip
