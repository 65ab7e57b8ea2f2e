"""All hooks on a scheduler of each generation: exact counts, joined results, exclusive stages, no trace."""

from __future__ import annotations

import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sgtop_agent import stages, timeline, wire
from sgtop_agent.describe import queue_reader
from sgtop_agent.find import Found, find, where
from sgtop_agent.hooks import Hooks
from sgtop_agent.rows import Rows

from tests.agent import fake_sglang as fake

Tables = dict[str, dict[str, "array[int]"]]


def collect(hooks: Hooks, into: Tables | None = None) -> Tables:
    into = defaultdict(lambda: defaultdict(lambda: array("q"))) if into is None else into  # type: ignore[assignment]
    assert into is not None
    for frame in hooks.drain(time.monotonic_ns()):
        body = wire.unpack(frame[4:])
        table, _n, columns = wire.check_events(body)
        assert set(columns) == set(wire.TABLES[table])
        for name, raw in columns.items():
            into[table][name].frombytes(bytes(raw))
    return into


@contextmanager
def hooked(scheduler: fake.Scheduler, loop: str = "event_loop_overlap") -> Iterator[Hooks]:
    with fake.running(scheduler, loop):
        found = fake.wait_for(find)
        hooks = Hooks(found)
        hooks.install()
        try:
            yield hooks
        finally:
            hooks.undo()


def work(scheduler: fake.Scheduler) -> None:
    scheduler.submit(
        fake.Req(prompt=150, new_tokens=20),  # chunked: 64 + 64 + 22
        fake.Req(prompt=30, new_tokens=5, cached=10),
        fake.Req(prompt=3, new_tokens=60),
    )
    fake.wait_for(lambda: scheduler.counters["decode"] > 0)
    scheduler.submit(*(fake.Req(prompt=40, new_tokens=8, cached=16) for _ in range(6)))  # mixed with running ones
    fake.wait_for(lambda: not scheduler.running and not scheduler.waiting_queue and not scheduler.inbox)
    fake.wait_for(lambda: not scheduler.result_queue and scheduler.last_batch is None)


@pytest.mark.parametrize("loop", ["event_loop_overlap", "event_loop_normal"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("generation", fake.GENERATIONS)
def test_steps_and_tokens_are_exactly_the_schedulers(generation: str, mixed: bool, loop: str) -> None:
    scheduler = fake.make(generation, mixed=mixed, graph_max_bs=2)
    with hooked(scheduler, loop) as hooks:
        before = scheduler.forward_ct
        work(scheduler)
        tables = collect(hooks)
        names = {v: k for k, v in hooks.modes.items()}
        steps, results, forwards = tables["step"], tables["result"], tables["forward"]
        assert list(steps["ct"]) == list(range(before + 1, scheduler.forward_ct + 1))
        assert list(results["ct"]) == list(steps["ct"])
        assert list(forwards["ct"]) == list(steps["ct"])
        assert list(forwards["mode"]) == list(steps["mode"])
        rows = [{c: steps[c][i] for c in steps} for i in range(len(steps["ct"]))]
        prefill = [r for r in rows if names[r["mode"]] in ("EXTEND", "MIXED")]
        decode = [r for r in rows if names[r["mode"]] == "DECODE"]
        assert {names[r["mode"]] for r in rows} >= {"EXTEND", "DECODE"}
        if mixed:
            assert "MIXED" in {names[r["mode"]] for r in rows}
        assert sum(r["tokens"] - r["decode_tokens"] for r in prefill) == scheduler.counters["compute"]
        assert sum(r["cached"] for r in prefill) == scheduler.counters["cache"]
        assert sum(r["tokens"] for r in decode) == scheduler.counters["decode"]
        assert all(r["tokens"] == r["bs"] == r["decode_tokens"] and r["cached"] == 0 for r in decode)
        # a graph up to two requests, eager above, never in prefill
        assert all(r["graph"] == (1 if r["bs"] <= 2 else 0) for r in decode)
        assert all(r["graph"] == 0 for r in prefill)
        assert all(r["t0"] <= r["t1"] for r in rows)
        assert hooks.off() == {}
        assert not any(hooks.lost().values())


@pytest.mark.parametrize("generation", fake.GENERATIONS)
def test_stages_cover_the_time_without_overlap(generation: str) -> None:
    scheduler = fake.make(generation)
    with hooked(scheduler) as hooks:
        work(scheduler)
        fake.wait_for(lambda: hooks.timeline.quiet)
        stage = collect(hooks)["stage"]
        assert list(stage["t1"])[:-1] == list(stage["t0"])[1:]
        seen = {wire.STAGES[s] for s in stage["stage"]}
        assert seen >= {
            "recv_requests",
            "process_input_requests",
            "get_next_batch_to_run",
            "run_batch",
            "process_batch_result",
            "idle",
        }
        steps = collect(hooks)["step"]  # already taken
        assert not steps


def test_a_spinning_idle_scheduler_floods_nothing() -> None:
    scheduler = fake.make("ingest", idle_sleep=0)
    with hooked(scheduler) as hooks:
        fake.wait_for(lambda: hooks.timeline.quiet)
        collect(hooks)
        turns = scheduler.turns
        fake.wait_for(lambda: scheduler.turns > turns + 3000)
        assert len(hooks.timeline.marks) == 0
        tables = collect(hooks)
        assert {wire.STAGES[s] for s in tables["stage"]["stage"]} == {"idle"}
        assert len(tables["stage"]["stage"]) == 1
        assert len(tables["queue"]["t"]) < 200


def test_a_paused_engine_is_its_own_stage() -> None:
    scheduler = fake.make("ingest")
    with hooked(scheduler) as hooks:

        def pause() -> None:
            scheduler._engine_paused = True

        def go_on() -> None:
            scheduler._engine_paused = False

        scheduler.submit(pause)
        turns = scheduler.turns
        fake.wait_for(lambda: scheduler._engine_paused and scheduler.turns > turns + 2000)
        assert len(hooks.timeline.marks) < 2000
        first = collect(hooks)
        assert wire.STAGES[first["stage"]["stage"][-1]] == "paused"
        scheduler.submit(go_on)
        work(scheduler)
        names = [wire.STAGES[s] for s in collect(hooks)["stage"]["stage"]]
        assert "run_batch" in names
        assert "paused" not in names[names.index("run_batch") :]


@pytest.mark.parametrize("generation", fake.GENERATIONS)
def test_undo_leaves_every_object_as_it_was(generation: str) -> None:
    scheduler = fake.make(generation, graph_max_bs=4)
    objects = [scheduler, scheduler.tp_worker.model_runner]
    with fake.running(scheduler):
        found = fake.wait_for(find)
        before = [set(vars(o)) for o in objects]
        parts = [getattr(scheduler, n, None) for n in ("request_receiver", "invariant_checker")]
        for _ in range(5):
            hooks = Hooks(found)
            hooks.install()
            assert set(vars(scheduler)) != before[0]
            work(scheduler)
            hooks.undo()
            hooks.undo()
            assert [set(vars(o)) for o in objects] == before
            assert [getattr(scheduler, n, None) for n in ("request_receiver", "invariant_checker")] == parts
            ct = scheduler.forward_ct
            work(scheduler)
            assert scheduler.forward_ct > ct


def test_a_hook_that_raises_goes_off_alone_and_the_server_goes_on() -> None:
    scheduler = fake.make("ingest")
    with hooked(scheduler) as hooks:
        fake.wait_for(lambda: hooks.timeline.quiet)
        original = scheduler._next

        def other_shape() -> Any:
            batch = original()
            if batch is not None and batch.forward_mode == scheduler.modes.EXTEND:
                batch.prefill_stats = object()  # a field that this version has in another shape
            return batch

        scheduler._next = other_shape  # type: ignore[method-assign]
        scheduler.process_batch_result = lambda batch, result: _finish(scheduler, batch)  # type: ignore[method-assign]
        ct = scheduler.forward_ct
        scheduler.submit(fake.Req(prompt=10, new_tokens=3))
        fake.wait_for(lambda: scheduler.forward_ct >= ct + 2)
        assert "AttributeError" in hooks.off()["step"]
        assert "run_batch" not in vars(scheduler)
        assert "step" not in hooks.caps
        assert "stage" in hooks.caps
        del scheduler.process_batch_result


def _finish(scheduler: fake.Scheduler, batch: fake.Batch) -> None:
    batch.prefill_stats = None
    fake.Scheduler.process_batch_result(scheduler, batch, fake.Result(False))


def test_exceptions_of_the_scheduler_pass_through_unchanged() -> None:
    scheduler = fake.make("ingest")
    undo = fake.install(scheduler.modes)
    try:
        hooks = Hooks(Found(scheduler, "event_loop_overlap", threading.get_ident(), 0))
        hooks.install()

        def boom() -> None:
            raise LookupError("SGLang's own")

        scheduler.step_work = boom
        with pytest.raises(LookupError, match="SGLang's own"):
            scheduler.run_batch(fake.Batch(scheduler.modes.DECODE, []))
        assert hooks.off() == {}
        hooks.undo()
    finally:
        undo()


def test_at_step_runs_on_the_schedulers_thread_between_steps() -> None:
    scheduler = fake.make("ingest")
    with hooked(scheduler) as hooks:
        ran: list[tuple[int, bool]] = []
        assert hooks.boundary.at_step(lambda: ran.append((threading.get_ident(), "run_batch" in where_names(hooks))))
        fake.wait_for(lambda: ran)
        assert ran == [(hooks.found.ident, False)]

        def bad() -> None:
            raise ValueError("late")

        hooks.boundary.at_step(bad)
        fake.wait_for(lambda: hooks.boundary.errors)
        work(scheduler)
        assert hooks.off() == {}


def where_names(hooks: Hooks) -> str:
    return " ".join(where(hooks.found.ident, 50))


def test_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "CAPACITY", 400)
    monkeypatch.setattr(timeline, "CAPACITY", 400)
    scheduler = fake.make("ingest")
    with hooked(scheduler) as hooks:
        fake.wait_for(lambda: hooks.timeline.quiet)
        ct = scheduler.forward_ct
        for _ in range(3):
            work(scheduler)
        steps = scheduler.forward_ct - ct
        assert len(hooks.timeline.marks) < 600
        first = collect(hooks)
        work(scheduler)  # there is room again
        again = scheduler.forward_ct - ct - steps
        second = collect(hooks)
        seen = len(first["step"]["ct"]) + len(second["step"]["ct"])
        assert hooks.lost()["step"] == steps + again - seen
        assert hooks.lost()["step"] > 0
        assert hooks.lost()["stage"] > hooks.lost()["step"]
        assert len(second["step"]["ct"]) > 0


def test_a_full_ring_counts_its_rows() -> None:
    rows = Rows(2, 3)
    for i in range(5):
        rows.add((i, i))
    assert rows.lost == 2
    assert [list(c) for c in rows.take(2)] == [[0, 1], [0, 1]]
    assert len(rows) == 1


def test_find_says_starting_before_the_loop_runs_and_leaves_no_locals_behind() -> None:
    scheduler = fake.make("ingest")
    gate, inside = threading.Event(), threading.Event()

    def slow_receive() -> None:
        inside.set()
        gate.wait(10)

    assert find() is None
    scheduler._receive = slow_receive  # type: ignore[method-assign]
    with fake.running(scheduler):
        inside.wait(10)
        found = find()
        assert found is not None
        assert found.scheduler is scheduler
        assert found.loop == "event_loop_overlap"
        lines = where(found.ident)
        assert any(line.startswith("slow_receive (test_hooks.py:") for line in lines)
        gate.set()
        del scheduler._receive


def test_hook_cost_is_reported() -> None:
    scheduler = fake.make("ingest")
    with hooked(scheduler) as hooks:
        hooks.calibrate()
        for _ in range(3):
            work(scheduler)
        collect(hooks)
        n, p50, p99, most = hooks.take_hook_ns()
        assert n >= 10
        assert 0 < p50 <= p99 <= most
        assert hooks.take_hook_ns() == (0, -1, -1, -1)


@pytest.mark.parametrize(
    ("finished", "running"), [((), 0), ((0, 0), 2), ((1, 1, 1), 0), ((1, 0, 1), 1), ((0, 1, 1), 3)]
)
def test_requests_that_have_finished_do_not_run(finished: tuple[int, ...], running: int) -> None:
    """They stay in the running batch until the next decode; the last case is the price of a look at the first alone."""
    scheduler: Any = fake.Scheduler()
    scheduler.running_batch.reqs = [SimpleNamespace(finished_reason=object() if f else None) for f in finished]
    row = queue_reader(scheduler, [0])(time.monotonic_ns())
    assert dict(zip(wire.TABLES["queue"], row, strict=True))["running"] == running
