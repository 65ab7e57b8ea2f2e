"""Each row of public reports that this data can show: its figures in, the named finding out; and on a healthy stream of
the same shape, nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from sgtop_core.findings.base import Facts, Verdict
from sgtop_core.findings.engine import KEEP_ENDED_S, Engine
from sgtop_core.findings.rules import RULES
from sgtop_core.model.snapshot import Process, Server
from sgtop_core.simulate.loop import Behaviour, Idle, Load, Step
from sgtop_core.simulate.scenes import SCENES

from .feed import Feed


def run(behaviour: Behaviour, seconds: float = 14, **hello) -> Feed:
    f = Feed(behaviour, **hello)
    f.run(seconds)
    return f


def found(f: Feed, rule: str):
    assert rule in f.ever, f"{rule} not among {sorted(f.ever)}"
    return f.ever[rule]


def decode(bs: int, gpu_us: float = 8_000, load: Load | None = None, **kw) -> Step:
    return Step("DECODE", bs, bs, gpu_us, load=load or Load(bs, 0, 0.0, 120_000), finished=1, **kw)


def mixed_traffic(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
    """Healthy: prefills, decodes, idle spells, young collections, a short queue, cache hits."""
    if 6 < t < 8:
        return Idle(60, Load(0, 0, 0.0, 0, 200_000))
    load = Load(30, rng.randint(0, 3), rng.random(), 150_000, 100_000)
    if turn % 20 == 0:
        return Step("EXTEND", 3, 2_400, 30_000, graph=0, cached=900, load=load)
    return decode(30, load=load, gc=(0, 0.5) if turn % 100 == 3 else None)


@pytest.mark.parametrize(
    "scene", ["decode-bound", "prefill-bound", "speculative", "pd-prefill", "pd-decode", "idle", "no-gpu"]
)
def test_nothing_on_healthy_scenes(scene: str) -> None:
    f = Feed.scene(scene)
    f.run(40)
    assert f.ever == {}
    assert f.engine.log == []


def test_nothing_on_mixed_healthy_traffic() -> None:
    assert run(mixed_traffic, 40).ever == {}


def test_nothing_while_it_spins_idle() -> None:
    """#9863, #1730: 100 % of a CPU while idle is busy polling."""
    f = run(lambda r, n, t, g: Idle(250, Load(0, 0, 0.0, 0, 100)), 30)
    f.model.slots["TP0"].cpu_share = 1.0
    f.run(10)
    assert f.ever == {}


def eager(top: int, low: int, high: int) -> Behaviour:
    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        bs = rng.randint(low, high)
        graph = int(bs <= top)
        return decode(bs, 8_000 if graph else 24_000, graph=graph, launch_us=250 if graph else 20_000)

    return behave


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        ({"cuda_graph_max_bs_decode": 32, "cuda_graph_max_bs": None}, "--cuda-graph-max-bs-decode 96"),
        ({"cuda_graph_max_bs": 32}, "--cuda-graph-max-bs 96"),
    ],
)
def test_33483_decode_above_the_largest_captured_batch(args: dict, flag: str) -> None:
    f = run(eager(32, 46, 96), graph_max_bs=32, args=args)
    a = found(f, "decode-eager")
    assert "> largest captured 32" in a.title
    assert a.severity == "critical"
    assert flag in a.next
    assert "100% of" in a.evidence
    assert run(eager(160, 46, 96), graph_max_bs=160).ever == {}


def test_5527_dp_attention_counts_the_global_batch() -> None:
    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        return decode(32, 30_000, graph=0, launch_us=20_000)

    f = run(behave, tp=1, dp=16, graph_max_bs=160, args={"enable_dp_attention": True})
    a = found(f, "decode-eager")
    assert "global batch 512 (16 ranks) > largest captured 160" in a.title
    assert "512" in a.next


def test_a_server_without_graphs_is_not_told_about_graphs() -> None:
    assert "decode-eager" not in run(eager(0, 4, 8), graph_max_bs=None).ever


def test_32549_decode_starved_by_prefill() -> None:
    """2,863 prefill against 36 decode batches in 15 minutes, 250 streams waiting."""

    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        load = Load(250, 40, 5.0, 300_000)
        return decode(250, 20_000, load) if turn % 80 == 79 else Step("EXTEND", 1, 8_000, 300_000, graph=0, load=load)

    f = run(behave, 26, args={"prefill_decode_interval": 0})
    a = found(f, "decode-starved")
    assert "250 running" in a.title
    assert "--prefill-decode-interval" in a.next
    assert "--enable-mixed-chunk" in found(run(behave, 12), "decode-starved").next


def test_a_prefill_server_of_a_pd_pair_has_no_decode_to_starve() -> None:
    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        return Step("EXTEND", 4, 8_000, 100_000, graph=0, cached=900, load=Load(8, 1, 0.2))

    assert "decode-starved" not in run(behave, args={"disaggregation_mode": "prefill"}).ever


def test_requests_of_one_token_starve_for_no_decode() -> None:
    """Scoring traffic on an H200: what the last prefill finished still stands in the running batch."""

    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        return Step("EXTEND", 6, 8_000, 100_000, graph=0, load=Load(6, 3, 0.2))

    assert "decode-starved" not in run(behave, args={"prefill_decode_interval": 0}).ever


def test_9241_collections_of_hundreds_of_milliseconds() -> None:
    f = run(lambda r, n, t, g: decode(64, gc=(2, g.uniform(100, 400)) if n % 50 == 25 else None))
    a = found(f, "gc-stops")
    assert "/freeze_gc" in a.next
    assert "generation 2" in a.evidence
    assert run(lambda r, n, t, g: decode(64, gc=(0, 0.4) if n % 50 == 25 else None)).ever == {}


def test_28067_the_rank_that_collects_is_named() -> None:
    f = Feed.scene("straggler")
    f.run(14)
    a = found(f, "gc-stops")
    assert a.rank == "TP3"
    assert [x.rank for x in f.alerts if x.id == "gc-stops"] == ["TP3"]


@pytest.mark.parametrize(
    ("stage", "step"),
    [("run_batch", "py-spy"), ("process_batch_result", "--stream-interval"), ("process_queue", "grammar")],
)
def test_5593_2076_the_stage_that_the_gpu_waits_for(stage: str, step: str) -> None:
    """2 ms of GPU idle before the first kernel of each replay: 32B, TP 4, bs 64."""
    extra = {"stages_us": {stage: 8_600.0}} if stage != "run_batch" else {"launch_us": 8_600}
    f = run(lambda r, n, t, g: decode(64, 6_500, **extra), tp=4)
    a = found(f, "decode-host-bound")
    assert a.rank is None
    assert stage in a.title
    assert step in a.next
    assert f.rank().gaps.by_mode["DECODE"].p50 == pytest.approx(2.2, abs=0.6)
    assert run(lambda r, n, t, g: decode(64, 6_500, launch_us=3_000), tp=4).ever == {}


def test_host_bound_without_overlap_names_the_flag() -> None:
    f = run(lambda r, n, t, g: decode(64, 6_500, launch_us=8_600), args={"disable_overlap_schedule": True})
    assert "--disable-overlap-schedule" in found(f, "decode-host-bound").next


@pytest.mark.parametrize(
    ("args", "step"),
    [
        ({"effective_max_running_requests": 400}, "--max-running-requests 800"),
        ({"effective_max_running_requests": 4096}, "--schedule-conservativeness"),
    ],
)
def test_7133_admission_limited(args: dict, step: str) -> None:
    """Running stuck at 399, 646 queued, cache use 0.19."""
    f = run(lambda r, n, t, g: decode(399, 22_000, Load(399, 646, 4.0, 76_000, 9_000)), args=args, graph_max_bs=512)
    a = found(f, "admission-limited")
    assert "646 queued while 81%" in a.title
    assert step in a.next
    full = run(lambda r, n, t, g: decode(399, 22_000, Load(399, 646, 4.0, 390_000)), args=args, graph_max_bs=512)
    assert full.ever == {}


def test_a_queue_that_is_being_computed_is_not_admission_limited() -> None:
    f = run(lambda r, n, t, g: Step("MIXED", 12, 8_192, 140_000, decode_tokens=10, cached=2_000, graph=0,
                                    load=Load(20, 30, 2.0, 90_000)))  # fmt: skip
    assert "admission-limited" not in f.ever


@pytest.mark.parametrize(("policy", "step"), [("lpm", "--schedule-policy fcfs"), ("fcfs", "replica")])
def test_31953_a_request_that_others_pass(policy: str, step: str) -> None:
    """Prefix-first starves 5 % of requests for 20 to 60 s."""
    f = run(lambda r, n, t, g: decode(48, load=Load(48, 20, 20 + t, 380_000)), 8, args={"schedule_policy": policy})
    a = found(f, "queue-age")
    assert step in a.next
    assert policy in a.evidence
    assert run(lambda r, n, t, g: decode(48, load=Load(48, 20, 0.8, 380_000))).ever == {}


def test_a_very_old_request_is_critical() -> None:
    f = run(lambda r, n, t, g: decode(48, load=Load(48, 20, 70 + t, 380_000)), 5)
    assert found(f, "queue-age").severity == "critical"


def test_34623_one_long_prompt_and_the_others_wait() -> None:
    """600 K tokens in chunks: 73 of them, one after the other."""

    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        return Step("EXTEND", 1, 8_192, 190_000, graph=0, cached=4, load=Load(3, 12, 2 + t, 250_000))

    a = found(run(behave), "long-prompt")
    assert "12 requests wait" in a.title
    assert "--chunked-prefill-size 4096" in a.next

    def several(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        load = Load(3, 2, 0.5, 250_000)
        if turn % 2:
            return decode(3, load=load)
        return Step("EXTEND", rng.randint(2, 4), 8_192, 150_000, graph=0, cached=900, load=load)

    assert run(several).ever == {}


def test_6291_tiny_prefills() -> None:
    """4 new tokens, 16,034 cached."""

    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        load = Load(30, 0, 0.0, 300_000)
        return decode(30, load=load) if turn % 2 else Step("EXTEND", 1, 4, 7_000, graph=0, cached=16_034, load=load)

    a = found(run(behave), "tiny-prefills")
    assert "4 new tokens a step beside 16,034 cached" in a.title
    assert "--enable-mixed-chunk" in a.next
    assert "--enable-mixed-chunk" not in found(run(behave, args={"enable_mixed_chunk": True}), "tiny-prefills").next

    def healthy(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        return decode(30) if turn % 10 else Step("EXTEND", 2, 900, 12_000, graph=0, cached=16_034, load=Load(30, 0))

    assert run(healthy).ever == {}


def prompts(cached: int) -> Behaviour:
    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        if turn % 8:
            return decode(20)
        return Step("EXTEND", 2, 900, 14_000, graph=0, cached=cached, load=Load(20, 0, 0.0, 99_000))

    return behave


def test_21158_hit_rate_stays_0() -> None:
    a = found(run(prompts(0), 20), "no-cache-hits")
    assert a.severity == "info"
    assert "0 of" in a.evidence
    assert "--page-size 16" in found(run(prompts(0), 20, args={"page_size": 64}), "no-cache-hits").next
    assert run(prompts(64), 20).ever == {}
    assert run(prompts(0), 20, args={"disable_radix_cache": True}).ever == {}


def balance(*loads: int) -> Behaviour:
    return lambda r, n, t, g: decode(8, load=Load(min(loads[r], 8), max(loads[r] - 8, 0), 0.5, 350_000))


def test_6872_one_dp_rank_with_all_the_queue() -> None:
    a = found(run(balance(96, 6, 4, 5), tp=1, dp=4, args={"load_balance_method": "round_robin"}), "dp-imbalance")
    assert a.rank == "DP0"
    assert "DP0 96, DP1 6" in a.evidence
    assert "--load-balance-method total_requests" in a.next
    assert run(balance(9, 6, 7, 8), tp=1, dp=4).ever == {}


@pytest.mark.parametrize(
    ("pd", "words"),
    [({"bootstrap": 7}, "shake hands"), ({"prealloc": 9}, "KV memory"), ({"transfer": 3}, "prefill server")],
)
def test_6857_10110_requests_stuck_in_the_hand_over(pd: dict[str, int], words: str) -> None:
    a = found(run(lambda r, n, t, g: Idle(100, Load(0, 0, 0.0, 0, pd=pd)), 16), "pd-stuck")
    assert words in a.title
    flows = run(lambda r, n, t, g: decode(16, load=Load(16, pd=pd)), 20)
    assert flows.ever == {}


def helpers(**shares: float) -> tuple[Process, ...]:
    return tuple(Process(role, 100 + i, s, 10**9, 12) for i, (role, s) in enumerate(shares.items()))


def test_29366_the_detokenizer_is_at_the_end_of_its_cpu() -> None:
    f = Feed.scene("decode-bound")
    f.model.processes = helpers(tokenizer=0.3, detokenizer=1.0)
    f.run(8)
    a = found(f, "helper-cpu")
    assert "detokenizer (pid 101)" in a.title
    assert "--stream-interval" in a.next
    f = Feed.scene("decode-bound")
    f.model.processes = helpers(tokenizer=0.3, detokenizer=0.6)
    f.run(8)
    assert f.ever == {}


def test_a_stopped_process_is_let_go_on() -> None:
    """What `y` copies is what the title says; a stack would show nothing."""
    f = Feed.scene("decode-bound")
    f.run(3)
    slot = f.model.slots["TP0"]
    slot.stopped = True
    alerts = ()
    for _ in range(60):  # nothing is heard any more
        f.now += 500_000_000
        f.model.advance(f.now)
        alerts = f.engine.look(f.model, f.now, f.now / 1e9) or alerts
    (hung,) = (a for a in alerts if a.id == "hung")
    assert hung.next == f"kill -CONT {slot.pid}"


def test_17941_the_rank_that_hangs_and_those_that_wait_for_it() -> None:
    def behave(rank: int, turn: int, t: float, rng: random.Random) -> Step | Idle:
        load = Load(12, 2, 0.5, 90_000)
        if t > 2 and (rank == 1 or t > 2.2):
            return Step("DECODE", 12, 12, 90e6, load=load, stages_us={"recv_requests": 90e6} if rank == 1 else {})
        return decode(12, load=load)

    f = run(behave, 16, tp=3)
    hung = [a for a in f.alerts if a.id == "hung"]
    assert [a.rank for a in hung] == ["TP1"]
    assert "TP0, TP2" in hung[0].evidence
    assert f"py-spy dump --pid {f.sims['TP1'].hello['pid']}" in hung[0].next
    assert hung[0].severity == "critical"


# --- the engine ------------------------------------------------------------------------------------------


class Rule:
    id = "r"
    raise_s = 2.0
    clear_s = 3.0

    def __init__(self) -> None:
        self.says: Callable[[Facts], list[Verdict]] = lambda f: []

    def check(self, facts: Facts) -> list[Verdict]:
        return self.says(facts)


def verdict(title: str = "t", rank: str | None = "TP0", severity: str = "warning") -> Verdict:
    return Verdict(rank, severity, title, "e", "n")


def at(engine: Engine, unix: float):
    return engine.check(Facts(unix, Server(1, "m", "v", 1, 1, 1), ()))


def test_a_finding_is_raised_late_latched_and_cleared_late() -> None:
    rule = Rule()
    engine = Engine([rule])
    rule.says = lambda f: [verdict()]
    assert at(engine, 100) == ()
    assert at(engine, 101) == ()
    (a,) = at(engine, 102)
    assert (a.since, a.active) == (100, True)
    rule.says = lambda f: []
    assert at(engine, 103)[0].active
    rule.says = lambda f: [verdict("changed")]
    (a,) = at(engine, 104)
    assert (a.title, a.since) == ("changed", 100)
    rule.says = lambda f: []
    assert at(engine, 106.9)[0].active
    assert not at(engine, 107)[0].active
    assert at(engine, 107 + KEEP_ENDED_S)[0].id == "r"
    assert at(engine, 108 + KEEP_ENDED_S) == ()
    began, ended = engine.drain_log()
    assert "began: TP0: t" in began
    assert "ended after 7 s" in ended
    assert engine.drain_log() == []


@pytest.mark.parametrize("rule_", RULES, ids=lambda r: r.id)
def test_a_finding_that_is_only_held_says_how_old_its_evidence_is(rule_) -> None:
    rule = Rule()
    rule.raise_s, rule.clear_s = rule_.raise_s, rule_.clear_s
    engine = Engine([rule])
    rule.says = lambda f: [verdict()]
    for t in range(100, 111):
        fresh = at(engine, t)
    assert [(a.evidence, a.quiet_s) for a in fresh] == [("e", 0.0)]
    rule.says = lambda f: []
    for quiet in range(1, int(rule.clear_s)):
        (a,) = at(engine, 110 + quiet)
        assert a.active
        assert (a.evidence, a.quiet_s) == (f"e; that was {quiet} s ago", quiet)
    rule.says = lambda f: [verdict()]
    (a,) = at(engine, 110 + max(int(rule.clear_s) - 1, 0.5))
    assert (a.evidence, a.quiet_s, a.since) == ("e", 0.0, 100), "it is back: fresh again"
    rule.says = lambda f: []
    (a,) = at(engine, 160)
    assert (a.active, a.evidence) == (False, "e"), "one that ended says that"
    assert "ago" not in "".join(engine.log)


def test_a_blink_is_nothing() -> None:
    rule = Rule()
    engine = Engine([rule])
    for k in range(20):
        rule.says = (lambda f: [verdict()]) if k % 2 else (lambda f: [])
        assert at(engine, 100 + k) == ()
    assert engine.log == []


def test_a_finding_that_comes_back_is_a_new_one() -> None:
    rule = Rule()
    engine = Engine([rule])
    for t, yes in [(0, 1), (2, 1), (3, 0), (6, 0), (10, 1), (12, 1)]:
        rule.says = (lambda f: [verdict()]) if yes else (lambda f: [])
        alerts = at(engine, t)
    assert [(a.active, a.since) for a in alerts] == [(True, 10)]


def test_rules_see_what_is_held_for_their_hysteresis() -> None:
    rule = Rule()
    engine = Engine([rule])
    seen: list[bool] = []

    def says(f: Facts) -> list[Verdict]:
        seen.append(f.held("TP0"))
        return [verdict()]

    rule.says = says
    for t in (0, 1, 2, 3):
        at(engine, t)
    assert seen == [False, False, False, True]


def test_worst_first_and_ended_last() -> None:
    rule = Rule()
    engine = Engine([rule])
    kinds = [("a", "info"), ("b", "critical"), ("c", "warning"), ("d", "critical")]
    rule.says = lambda f: [verdict(rank=r, severity=s) for r, s in kinds]
    at(engine, 0)
    assert [a.rank for a in at(engine, 2)] == ["b", "d", "c", "a"]
    rule.says = lambda f: [verdict(rank="a", severity="info")]
    assert [(a.rank, a.active) for a in at(engine, 9)] == [("a", True), ("b", False), ("d", False), ("c", False)]


def test_a_rule_that_trips_is_off_and_said_once() -> None:
    rule, good = Rule(), Rule()
    good.id = "good"  # type: ignore[misc]
    good.raise_s = 0.0  # type: ignore[misc]
    good.says = lambda f: [verdict()]

    def says(f: Facts) -> list[Verdict]:
        raise ZeroDivisionError("oh")

    rule.says = says
    engine = Engine([rule, good])
    assert [a.id for a in at(engine, 1)] == ["good"]
    at(engine, 2)
    assert len([x for x in engine.log if "ZeroDivisionError" in x]) == 1


def test_every_rule_has_its_own_name_and_a_next_step_that_fits_a_line() -> None:
    ids = [r.id for r in RULES]
    assert len(ids) == len(set(ids))
    for scene in SCENES:
        f = Feed.scene(scene)
        f.run(12)
        for a in f.ever.values():
            assert "\n" not in a.title + a.evidence + a.next
            assert len(a.title) < 110
            assert a.next


def test_findings_clear_when_the_cause_ends() -> None:
    f = run(
        lambda r, n, t, g: decode(60, 20_000, graph=0, launch_us=20_000) if t < 10 else decode(30), 9, graph_max_bs=32
    )
    assert [a.active for a in f.alerts if a.id == "decode-eager"] == [True]
    f.run(14)
    assert [a.active for a in f.alerts if a.id == "decode-eager"] == [False]
