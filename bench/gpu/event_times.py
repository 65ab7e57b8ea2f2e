"""The agent's GPU times against the truth, on a real GPU with nothing of SGLang: run before trusting any server's.

    python bench/gpu/event_times.py          # needs torch with CUDA; a few seconds

Kernels of known length (a spinning kernel, measured with synchronisation) are timed by ``sgtop_agent.gpu.GpuTimer``
exactly as the hooks do it, 300 at a time, eager and inside a CUDA graph. Printed: the error of the lengths, the error
of the end against CLOCK_MONOTONIC after a synchronisation (an upper bound: waking up is in it), the width of the
anchors, and what begin + late + end + step_end (with polling) cost the launching thread. Exit code 1 when a limit is
exceeded.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agent"))

from sgtop_agent.gpu import GpuTimer

STEPS = 300
LENGTH_LIMIT = 0.05
"""Median relative error of a forward's length: the acceptance limit against torch's profiler."""
END_LIMIT_US = 100.0


def spin(torch: Any, cycles: int) -> None:
    """A kernel that does nothing for a number of clock cycles."""
    torch.cuda._sleep(cycles)


def measure(torch: Any, work: Any, stream: Any) -> tuple[list[float], list[float], list[float], int]:
    """(lengths in µs by the timer, errors of the end in µs, cost in µs, anchor error in ns) of STEPS steps."""
    rows: dict[int, tuple[int, int, int]] = {}
    timer = GpuTimer(
        torch.cuda, time.monotonic_ns, lambda row, a, b, c: rows.__setitem__(row[0], (a, b, c)), stream, False
    )
    ends: dict[int, int] = {}
    cost = []
    with torch.cuda.stream(stream):
        for n in range(STEPS):
            a = time.perf_counter_ns()
            slot = timer.begin()
            assert slot is not None, "no slot"
            timer.current = slot
            timer.late()
            b = time.perf_counter_ns()
            work()
            c = time.perf_counter_ns()
            timer.current = None
            timer.end(slot, (n,), True)
            timer.step_end(None)
            d = time.perf_counter_ns()
            cost.append((b - a + d - c) / 1e3)
            stream.synchronize()
            ends[n] = time.monotonic_ns()
            timer.poll()
    assert timer.on, timer.why_off
    lengths = [(gpu1 - gpu0) / 1e3 for gpu0, gpu1, _ in rows.values()]
    errors = [(ends[n] - gpu2) / 1e3 for n, (_, _, gpu2) in rows.items()]
    timer.close()
    return lengths, errors, cost, timer.anchor_error_ns


def truth(torch: Any, work: Any, stream: Any) -> float:
    """Median length in µs by two events around the work, synchronised."""
    out: list[float] = []
    with torch.cuda.stream(stream):
        for _ in range(50):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            stream.synchronize()
            out.append(start.elapsed_time(end) * 1e3)
    return statistics.median(out)


def main() -> int:
    """Run and print; 1 when a limit is exceeded."""
    import torch

    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        spin(torch, 1000)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(4):
                spin(torch, 100_000)
    bad = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {STEPS} steps each")
    cases = {
        "eager 0.1 ms": lambda: spin(torch, 180_000),
        "eager 2 ms": lambda: spin(torch, 3_600_000),
        "graph": graph.replay,
    }
    for name, work in cases.items():
        expected = truth(torch, work, stream)
        lengths, errors, cost, anchor = measure(torch, work, stream)
        ratio = statistics.median(lengths) / expected - 1
        late, early = statistics.quantiles(errors, n=20)[-1], min(errors)
        print(
            f"{name:13} {expected:9.1f} µs; timer {ratio:+.2%}; its end before the host sees it: median "
            f"{statistics.median(errors):.1f}, p95 {late:.1f}, min {early:.1f} µs; anchor ±{anchor / 1e3:.1f} µs; "
            f"events cost {statistics.median(cost):.1f} µs a step"
        )
        bad = bad or abs(ratio) > LENGTH_LIMIT or late > END_LIMIT_US or early < -20
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
