"""What can be switched on which server: runners of every generation, drafts, caches, sessions, groups."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sgtop_agent.switches import estimate, known

from tests.agent import fake_sglang as fake
from tests.switches.rig import Agent, Peer, RadixCache, Scheduler


class Flag:
    """SGLang's EnvBool."""

    def __init__(self, value: bool = False) -> None:
        self.value = value

    def get(self) -> bool:
        return self.value


@pytest.fixture
def flag() -> Iterator[Flag]:
    """``sglang.srt.environ`` with the flag in it."""
    module = types.ModuleType("sglang.srt.environ")
    made = Flag()
    module.envs = SimpleNamespace(SGLANG_RADIX_FORCE_MISS=made)  # type: ignore[attr-defined]
    sys.modules["sglang.srt.environ"] = module
    yield made
    del sys.modules["sglang.srt.environ"]


def turn(agent: Agent, scheduler: Any, n: int = 6) -> None:
    """``n`` steps, with the agent's thread looking after each."""
    for i in range(n):
        scheduler.get_next_batch_to_run()
        scheduler.forward_ct += 1
        agent.tick(1_000_000_000 + i)


def armed(scheduler: Any) -> tuple[Agent, Peer]:
    agent, client = Agent(scheduler), Peer()
    agent.clients.append(client)
    assert agent.call(client, "switch.open")["ok"], client.said
    os.close(client.handed.pop())
    return agent, client


@pytest.mark.parametrize("generation", fake.GENERATIONS)
def test_graphs_of_every_generation_run_eager_and_come_back(generation: str) -> None:
    scheduler: Any = fake.make(generation, graph_max_bs=8)
    undo = fake.install(scheduler.modes)
    try:
        runner = scheduler.tp_worker.model_runner
        decode = fake.ForwardBatch(scheduler.modes.DECODE, 4, None)
        assert runner.forward(decode).can_run_graph
        agent, client = armed(scheduler)
        assert agent.call(client, "switch.flip", switch="cuda-graph-decode", on=False)["ok"]
        turn(agent, scheduler)
        assert not runner.forward(decode).can_run_graph
        assert agent.call(client, "switch.back", switch="cuda-graph-decode")["ok"]
        turn(agent, scheduler)
        assert runner.forward(decode).can_run_graph
        refused = agent.call(client, "switch.plan", switch="cuda-graph-prefill", on=False)
        assert "no prefill graph was captured" in refused["error"]
        agent.drop(client)
        turn(agent, scheduler)
        assert not agent.busy()
        agent.undo()
        graph = runner.graph_runner if generation == "recv_on_scheduler" else runner.decode_cuda_graph_runner
        assert not {"can_run", "can_run_graph"} & set(vars(graph))
    finally:
        undo()


@pytest.mark.parametrize("old", [True, False])
def test_prefill_graphs(old: bool) -> None:
    scheduler = Scheduler(0, 1)
    runner: Any = scheduler.tp_worker.model_runner
    if old:
        piecewise = fake.OldGraphRunner(512)
        scheduler.tp_worker.model_runner = runner = SimpleNamespace(
            graph_runner=fake.OldGraphRunner(8), piecewise_cuda_graph_runner=piecewise
        )
        test: Callable[[Any], bool] = lambda batch: piecewise.can_run(batch)  # noqa: E731
    else:
        test = lambda batch: runner.prefill_cuda_graph_runner.can_run_graph(batch)  # noqa: E731
    batch = SimpleNamespace(batch_size=1)
    agent, client = armed(scheduler)
    assert agent.call(client, "switch.flip", switch="cuda-graph-prefill", on=False)["ok"]
    turn(agent, scheduler)
    assert not test(batch)
    turn(agent, scheduler)
    agent.drop(client)
    turn(agent, scheduler)
    assert test(batch)
    agent.undo()


class Draft:
    """A draft worker of speculative decoding."""

    def __init__(self, **runners: Any) -> None:
        self.cuda_graph_runner = fake.GraphRunner(8)
        self.cuda_graph_runner_for_draft_extend = fake.GraphRunner(8)
        for name, value in runners.items():
            setattr(self, name, value)


def speculative(**runners: Any) -> tuple[Scheduler, Draft]:
    scheduler, draft = Scheduler(0, 1), Draft(**runners)
    scheduler.draft_worker = draft  # type: ignore[attr-defined]
    scheduler.spec_algorithm = SimpleNamespace(is_none=lambda: False)  # type: ignore[attr-defined]
    return scheduler, draft


def test_a_speculative_server_changes_target_and_draft_together() -> None:
    scheduler, draft = speculative()
    batch = SimpleNamespace(batch_size=1)
    runners = [
        scheduler.tp_worker.model_runner.decode_cuda_graph_runner,
        draft.cuda_graph_runner,
        draft.cuda_graph_runner_for_draft_extend,
    ]
    agent, client = armed(scheduler)
    assert agent.call(client, "switch.flip", switch="cuda-graph-decode", on=False)["ok"]
    turn(agent, scheduler)
    assert [r.can_run_graph(batch) for r in runners] == [False] * 3
    agent.drop(client)
    turn(agent, scheduler)
    assert [r.can_run_graph(batch) for r in runners] == [True] * 3
    agent.undo()


def test_a_draft_runner_that_is_not_known_greys_the_switch_out() -> None:
    scheduler, _ = speculative(tree_graph_runner=SimpleNamespace(replay=print))
    graphs = known.graphs(scheduler)
    assert "Draft.tree_graph_runner" in graphs.no_decode
    assert graphs.no_prefill


def test_adaptive_speculation_and_a_runner_without_a_test_grey_it_out() -> None:
    scheduler, _ = speculative()
    scheduler.server_args.speculative_adaptive = True
    assert "adaptive" in known.graphs(scheduler).no_decode
    scheduler, _ = speculative(cuda_graph_runner=SimpleNamespace(execute=print))
    assert "has no test" in known.graphs(scheduler).no_decode


def test_eager_runners_are_no_graphs() -> None:
    scheduler = Scheduler(0, 1)
    runner: Any = scheduler.tp_worker.model_runner
    runner.decode_cuda_graph_runner = runner.prefill_cuda_graph_runner = fake.EagerRunner()
    graphs = known.graphs(scheduler)
    assert (graphs.no_decode, graphs.no_prefill) == (
        "no decode graph was captured",
        "no prefill graph was captured",
    )


def test_a_runner_that_is_captured_anew_is_switched_too() -> None:
    scheduler = Scheduler(0, 1)
    agent, client = armed(scheduler)
    assert agent.call(client, "switch.flip", switch="cuda-graph-decode", on=False)["ok"]
    turn(agent, scheduler)
    scheduler.tp_worker.model_runner.decode_cuda_graph_runner = fake.GraphRunner(8)
    scheduler.get_next_batch_to_run()
    assert not scheduler.tp_worker.model_runner.decode_cuda_graph_runner.can_run_graph(SimpleNamespace(batch_size=1))
    agent.drop(client)
    turn(agent, scheduler)
    agent.undo()


# --- radix cache ------------------------------------------------------------------------------------------------------


def test_forced_misses_come_and_go_and_the_flag_is_as_it_was(flag: Flag) -> None:
    scheduler = Scheduler(0, 1)
    agent, client = armed(scheduler)
    assert agent.call(client, "switch.flip", switch="radix-cache", on=False)["ok"]
    assert flag.get() is False
    turn(agent, scheduler)
    assert flag.get() is True
    agent.drop(client)
    turn(agent, scheduler)
    assert flag.get() is False
    agent.undo()
    assert vars(flag) == {"value": False}


def test_a_session_that_is_opened_ends_forced_misses_in_the_same_turn_and_for_good(flag: Flag) -> None:
    scheduler = Scheduler(0, 1)
    sessions: dict[str, Any] = {}
    scheduler.session_controller = SimpleNamespace(sessions=sessions)  # type: ignore[attr-defined]
    agent, client = armed(scheduler)
    assert agent.call(client, "switch.flip", switch="radix-cache", on=False)["ok"]
    turn(agent, scheduler)
    assert flag.get()
    sessions["s"] = object()
    scheduler.get_next_batch_to_run()
    assert not flag.get()
    sessions.clear()
    scheduler.get_next_batch_to_run()
    assert not flag.get(), "closing goes by each rank's own clock"
    turn(agent, scheduler)
    assert any("a session was opened" in note for note in agent.notes)
    agent.drop(client)
    turn(agent, scheduler)
    agent.undo()


class HiRadixCache:
    pass


class ChunkCache:
    pass


class UnifiedRadixCache:
    def __init__(self, *parts: str, **more: Any) -> None:
        self.components = dict.fromkeys(parts)
        for name, value in more.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        (RadixCache(), ""),
        (UnifiedRadixCache("full"), ""),
        (HiRadixCache(), "cache class HiRadixCache is not tested"),
        (ChunkCache(), "the radix cache is disabled"),
        (UnifiedRadixCache("full", "swa"), "not tested with FULL, SWA components"),
        (UnifiedRadixCache(), "not tested with unknown components"),
        (UnifiedRadixCache("full", cache_controller=object()), "not tested with a hierarchical cache"),
        (UnifiedRadixCache("full", linker=object()), "not tested with an external cache"),
        (UnifiedRadixCache("full", enable_session_radix_cache=True), "not tested with sessions in the radix cache"),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, str) else v[:30],
)
def test_caches(flag: Flag, cache: Any, why: str) -> None:
    scheduler = Scheduler(0, 1)
    scheduler.tree_cache = cache
    said = known.no_radix(scheduler)
    assert why in said
    assert bool(why) == bool(said)


def test_sessions_and_flags_that_grey_the_radix_cache_out(flag: Flag) -> None:
    scheduler = Scheduler(0, 1)
    agent = Agent(scheduler)
    scheduler.session_controller = SimpleNamespace(sessions={"a": 1, "b": 2})  # type: ignore[attr-defined]
    assert "sessions are open (2)" in known.no_radix(scheduler)
    scheduler.session_controller.sessions.clear()  # type: ignore[attr-defined]
    scheduler.server_args.disable_radix_cache = True
    assert known.no_radix(scheduler) == "the radix cache is disabled"
    scheduler.server_args.disable_radix_cache = False
    flag.value = True
    assert "is off already" in agent.call(Peer(), "switch.plan", switch="radix-cache", on=False)["error"]
    del sys.modules["sglang.srt.environ"].envs.SGLANG_RADIX_FORCE_MISS  # type: ignore[attr-defined]
    assert "0.5.12 and later" in known.no_radix(scheduler)


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: setattr(s.server_args, "pp_size", 2), "pipeline parallelism"),
        (lambda s: setattr(s.server_args, "nnodes", 2), "ranks on other hosts"),
        (lambda s: setattr(s.server_args, "enable_dp_attention", True), "DP attention"),
        (lambda s: setattr(s, "require_mlp_sync", True), "DP attention"),
        (lambda s: setattr(s.server_args, "attn_cp_size", 2), "context parallelism"),
        (lambda s: setattr(s, "recv_skipper", object()), "--scheduler-recv-interval"),
        (lambda s: setattr(s, "request_receiver", SimpleNamespace(recv_skipper=object())), "recv-interval"),
        (lambda s: setattr(s, "on_idle", None), "no step boundary that sgtop knows"),
    ],
)
def test_groups_that_cannot_agree_are_refused(change: Callable[[Any], None], why: str) -> None:
    scheduler = Scheduler(0, 2)
    assert known.no_group(scheduler, "event_loop_overlap") == ""
    change(scheduler)
    assert why in known.no_group(scheduler, "event_loop_overlap")
    agent, client = Agent(scheduler), Peer()
    assert why in agent.call(client, "switch.open")["error"]
    assert all(not s["available"] for s in agent.call(client, "switch.list")["result"]["switches"])


@pytest.mark.parametrize("loop", ["event_loop_pp", "event_loop_overlap_disagg_decode", "event_loop_pdmux"])
def test_other_event_loops_are_refused(loop: str) -> None:
    assert "is not tested" in known.no_group(Scheduler(0, 1), loop)


def test_an_agent_without_a_boundary_is_refused() -> None:
    agent = Agent(Scheduler(0, 1))
    agent.hooks.caps = []
    assert "no step boundary" in agent.call(Peer(), "switch.open")["error"]


# --- what it costs ----------------------------------------------------------------------------------------------------


def crowded(used: int, cached: int, n: int) -> Scheduler:
    scheduler = Scheduler(0, 1)
    scheduler.running_batch.reqs = [SimpleNamespace(cached_tokens=cached) for _ in range(n)]
    pool = SimpleNamespace(full_num_used=used, full_evictable_size=20, full_available_size=980 - used)
    scheduler.get_pool_stats = lambda: pool  # type: ignore[attr-defined]
    return scheduler


def test_forced_misses_that_do_not_fit_are_refused(flag: Flag) -> None:
    plan = estimate.plan(crowded(500, 40, 10), known.RADIX)
    assert (plan["kv_tokens"], plan["kv_free"], plan["refuse"]) == (400, 500, "")
    full = crowded(700, 40, 10)
    assert "400 more KV tokens" in estimate.plan(full, known.RADIX)["refuse"]
    agent, client = armed(full)
    refused = agent.call(client, "switch.flip", switch="radix-cache", on=False)
    assert "not enough" in refused["error"]
    agent.drop(client)
    full.running_batch.reqs = []
    turn(agent, full)
    agent.undo()


@pytest.mark.parametrize(("free", "refused"), [(50_000_000_000, False), (1_000_000, True)])
def test_eager_forwards_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch, free: int, refused: bool) -> None:
    scheduler = Scheduler(0, 1)
    scheduler.device = "cuda"
    scheduler.max_running_requests = 64  # type: ignore[attr-defined]
    scheduler.model_config = SimpleNamespace(  # type: ignore[attr-defined]
        vocab_size=32000, hidden_size=4096, hf_config=SimpleNamespace(intermediate_size=12288)
    )
    cuda = SimpleNamespace(
        mem_get_info=lambda i: (free, 10 * free), memory_reserved=lambda i: 5, memory_allocated=lambda i: 5
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    plan = estimate.plan(scheduler, known.DECODE)
    assert plan["gpu_free"] == free
    assert plan["gpu_bytes"] == 64 * (8 * 4096 + 3 * 12288) * 2 + 64 * 32000 * 8
    assert bool(plan["refuse"]) is refused
    assert "unknown, seconds" in plan["text"]


def test_low_memory_and_a_full_pool_send_flips_back(flag: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = crowded(100, 0, 0)
    agent, client = armed(scheduler)
    for name in ("radix-cache", "cuda-graph-decode"):
        assert agent.call(client, "switch.flip", switch=name, on=False)["ok"]
        turn(agent, scheduler)
    monkeypatch.setattr(agent.control._rank, "_guard_at", 0)
    scheduler.get_pool_stats = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        full_num_used=995, full_evictable_size=0, full_available_size=5
    )
    turn(agent, scheduler)
    assert any("radix-cache goes back on: the KV pool is nearly full (995 of 1000" in n for n in agent.notes)
    monkeypatch.setattr(estimate, "gpu_free", lambda s: 1_000_000)
    agent.control._gpu_at = 0
    turn(agent, scheduler)
    assert any("cuda-graph-decode goes back on: GPU memory is low (1 MB free)" in n for n in agent.notes)
    agent.drop(client)
    turn(agent, scheduler)
    agent.undo()
