"""GPU times of forwards from events, against a simulated device that knows the truth."""

from __future__ import annotations

from typing import Any

import pytest
from sgtop_agent import gpu as gpu_module
from sgtop_agent.gpu import GpuTimer

from tests.agent.fake_cuda import Gpu

Emitted = list[tuple[tuple[int, ...], int, int, int]]


def timer(gpu: Gpu, stream: Any = "main", entry_start: bool = False) -> tuple[GpuTimer, Emitted]:
    out: Emitted = []
    stream = gpu.main if stream == "main" else stream
    made = GpuTimer(gpu, gpu.clock, lambda row, a, b, c: out.append((row, a, b, c)), stream, entry_start)
    return made, out


def step(
    gpu: Gpu, t: GpuTimer, ct: int, work_ns: int, prepare_ns: int = 200_000, sample_ns: int = 40_000, result: Any = None
) -> tuple[int, int, int]:
    """A step as the hooks see it; returns when the GPU really worked: start, end, end of sampling."""
    slot = t.begin()
    assert slot is not None
    before, t.current = t.current, slot
    gpu.now += prepare_ns  # load_batch: the GPU has nothing to do
    t.late()
    start, end = gpu.main.launch(work_ns)
    t.current = before
    t.end(slot, (ct,), True)
    _, sampled = gpu.main.launch(sample_ns)
    t.step_end(result)
    return start, end, sampled


def test_times_are_monotonic_clock_and_leave_preparation_out() -> None:
    gpu = Gpu()
    t, out = timer(gpu)
    truth = {}
    for ct in range(1, 200):
        truth[ct] = step(gpu, t, ct, work_ns=300_000 + ct * 1000)
        gpu.now += 500_000
        t.poll()
    assert len(out) > 190
    assert gpu.synchronised == 0
    for (ct,), gpu0, gpu1, gpu2 in out:
        start, end, sampled = truth[ct]
        bound = t.anchor_error_ns + gpu.launch_ns + 2_000
        assert abs(gpu0 - start) <= bound
        assert abs((gpu1 - gpu0) - (end - start)) <= gpu.launch_ns + 2_000
        assert abs((gpu2 - gpu1) - (sampled - end)) <= 2_000
    assert 0 <= t.anchor_error_ns < 15_000


@pytest.mark.parametrize(("work_ns", "polls", "behind"), [(4_000_000, (20, 45), 6), (60_000_000, (95, 100), 3)])
def test_short_steps_are_read_a_few_at_a_time_and_long_ones_at_once(
    work_ns: int, polls: tuple[int, int], behind: int
) -> None:
    gpu = Gpu()
    t, out = timer(gpu)
    count, most = 0, 0
    poll = t.poll

    def counted() -> None:
        nonlocal count
        count += 1
        poll()

    t.poll = counted  # type: ignore[method-assign]
    for ct in range(100):
        step(gpu, t, ct, work_ns)
        gpu.now = max(gpu.now, gpu.main.free_at - work_ns)  # one forward is under way while the next is launched
        most = max(most, len(t.pending))
    assert polls[0] <= count <= polls[1]
    assert most <= behind
    assert len(out) >= 100 - behind


@pytest.mark.parametrize("at", ["late", "end", "step_end"])
def test_waiting_for_room_in_the_launch_queue_is_no_cost_of_ours(at: str) -> None:
    gpu = Gpu()
    t, _ = timer(gpu)
    step(gpu, t, 1, work_ns=300_000)
    usual, t.unseen_ns = t.unseen_ns, 0
    assert 700 <= usual < 2_000, "the record of the late point, which no hook measures"
    slot = t.begin()
    assert slot is not None
    t.current = slot
    gpu.room_ns = 3_500_000 if at == "late" else 0
    t.late()
    gpu.room_ns = 3_500_000 if at == "end" else 0
    t.end(slot, (2,), True)
    gpu.room_ns = 3_500_000 if at == "step_end" else 0
    t.step_end(None)
    if at == "late":
        assert t.unseen_ns == 0
    else:
        assert -3_510_000 < t.unseen_ns <= -3_500_000 + usual, "the hook that measured it takes it off again"


def test_without_a_late_point_the_entry_counts() -> None:
    gpu = Gpu()
    t, out = timer(gpu, entry_start=True)
    for ct in range(1, 20):
        slot = t.begin()
        assert slot is not None
        entered = gpu.now
        gpu.now += 100_000
        gpu.main.launch(50_000)
        t.end(slot, (ct, entered), True)
        t.step_end(None)
        gpu.now += 300_000
        t.poll()
    for (_, entered), gpu0, _, _ in out:
        assert abs(gpu0 - entered) < 20_000


def test_a_new_anchor_every_few_seconds_keeps_the_float_exact_enough() -> None:
    gpu = Gpu()
    t, out = timer(gpu)
    for ct in range(1, 100):
        step(gpu, t, ct, work_ns=300_000)
        gpu.now += 1_000_000_000
        t.poll()
    starts = [gpu0 for _, gpu0, _, _ in out]
    assert starts == sorted(starts)
    anchored = t._anchor_ns
    assert gpu.now - anchored < 3 * gpu_module.REANCHOR_NS


def test_nothing_while_a_graph_is_captured() -> None:
    gpu = Gpu()
    t, _ = timer(gpu)
    gpu.capturing = True
    assert t.begin() is None
    t.late()
    assert t.on
    gpu.capturing = False
    assert t.begin() is not None


def test_delayed_sampling_ends_the_step_later() -> None:
    class Delayed:
        delay_sample_func = staticmethod(lambda: None)

    gpu = Gpu()
    t, out = timer(gpu)
    step(gpu, t, 1, work_ns=100_000, sample_ns=0, result=Delayed())
    gpu.now += 1_000_000
    t.poll()
    assert out == []  # sampling has not been launched yet
    gpu.main.launch(70_000)
    t.sampled()
    gpu.now += 1_000_000
    t.poll()
    ((_, _, gpu1, gpu2),) = out
    assert gpu2 - gpu1 > 900_000


def test_the_ring_is_bounded_reused_and_counts_what_it_could_not_time() -> None:
    gpu = Gpu()
    t, out = timer(gpu)
    gpu.main.launch(10**12)  # the device is busy for a quarter of an hour: nothing completes
    for ct in range(gpu_module.RING + 50):
        slot = t.begin()
        if slot is not None:
            t.end(slot, (ct,), True)
        t.step_end(None)
    assert t.lost == 50
    assert gpu.events <= 3 * gpu_module.RING + 64
    gpu.now += 2 * 10**12
    for _ in range(gpu_module.RING):
        t.poll()
    assert len(out) == gpu_module.RING
    made = gpu.events
    for ct in range(100):
        step(gpu, t, ct, work_ns=10_000)
        gpu.now += 1_000_000
        t.poll()
    assert gpu.events - made < 20  # anchors only


def test_an_error_switches_gpu_times_off_and_gives_the_rows_up_without_them() -> None:
    gpu = Gpu()
    t, out = timer(gpu)
    step(gpu, t, 1, work_ns=10_000)

    def broken() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    t.pending[0].end2.query = broken  # type: ignore[method-assign]
    gpu.now += 1_000_000
    t.poll()
    assert not t.on
    assert "illegal memory access" in t.why_off
    assert out == [((1,), -1, -1, -1)]
    assert t.begin() is None
    t.step_end(None)
    t.poll()


def test_a_forward_that_raises_gives_its_events_back() -> None:
    gpu = Gpu()
    t, out = timer(gpu)
    slot = t.begin()
    assert slot is not None
    t.drop(slot)
    assert t.begin() is slot
    assert out == []


def test_close_lets_go_of_everything() -> None:
    gpu = Gpu()
    t, _ = timer(gpu)
    step(gpu, t, 1, work_ns=10_000)
    t.close()
    assert not t.pending
    assert t.begin() is None


@pytest.mark.parametrize("busy_ns", [0, 2_000_000])
def test_a_device_that_does_not_answer_in_time_gets_no_anchor_and_is_asked_again(busy_ns: int) -> None:
    gpu = Gpu(launch_ns=3_000 + busy_ns)
    t, out = timer(gpu)
    for ct in range(30):
        step(gpu, t, ct, work_ns=10_000)
        gpu.now += 5_000_000
        t.poll()
    assert bool(out) == (busy_ns == 0)
    assert t.on
