"""One row a ``run_batch``, one a processed result.

Scalars are copied *before* the original runs: under the overlap scheduler the batch is changed while it runs,
and ``process_batch_result`` gets a copy one step later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu import GpuTimer
from .nvtx import Ranges
from .patches import Fail, Make
from .rows import Rows
from .timeline import Timeline, mono

STEP_WIDTH = 10
RESULT_WIDTH = 4
MAX_IN_FLIGHT = 64

ReadBatch = Callable[[Any], tuple[int, int, int, int, int]]
"""batch → mode, requests, tokens, tokens of decoding requests, cached tokens"""


class StepState:
    """What the hooks of one step hand to each other; main thread only."""

    __slots__ = ("ct", "graph", "in_flight", "spent")

    def __init__(self) -> None:
        self.ct = -1
        """forward_ct of the step that runs, or ran last"""
        self.graph = -1
        """the last target forward: 1 graph, 0 eager, -1 unknown"""
        self.spent = 0
        """ns in hooks since the last step row, as far as hooks measure themselves"""
        self.in_flight: dict[int, int] = {}
        """id of a result that is not processed yet → its forward_ct"""


def run_batch(
    scheduler: Any,
    tl: Timeline,
    code: int,
    rows: Rows,
    read: ReadBatch,
    state: StepState,
    gpu: GpuTimer | None,
    ranges: Ranges,
) -> Make:
    """The hook of ``run_batch``. ``forward_ct`` counts up at its top in every version."""
    in_flight = state.in_flight
    unknown = (-1, -1, -1, -1, -1)

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            t0 = mono()
            prev = tl.cur
            scalars = unknown
            ct = -1
            t1 = t0
            try:
                if tl.quiet:
                    tl.wake()
                tl.cur = code
                tl.put((t0, code))
                ct = state.ct = scheduler.forward_ct + 1
                state.graph = -1
                batch = args[0] if args else kwargs["batch"]
                scalars = read(batch)
                if ranges.on:
                    ranges.push(scalars, batch)
                t1 = mono()
                state.spent += t1 - t0
            except BaseException as error:
                fail(error)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                try:
                    tl.cur = prev
                    tl.put((mono(), prev))
                    if ranges.depth:
                        ranges.pop()
                except BaseException as error:
                    fail(error)
                raise
            try:
                t2 = mono()
                tl.cur = prev
                tl.put((t2, prev))
                if ranges.depth:
                    ranges.pop()
                if gpu is not None:
                    gpu.step_end(result)
                if len(in_flight) >= MAX_IN_FLIGHT:
                    in_flight.clear()
                in_flight[id(result)] = ct
                graph = state.graph
                if graph < 0:
                    used = getattr(result, "can_run_cuda_graph", None)
                    if used is not None:
                        graph = 1 if used else 0
                mode, bs, tokens, decode, cached = scalars
                rows.add((ct, mode, t0, t2, bs, tokens, decode, cached, graph, state.spent))
                state.spent = mono() - t2
            except BaseException as error:
                fail(error)
            return result

        return hook

    return make


def process_batch_result(
    tl: Timeline, code: int, rows: Rows, accepted: Callable[[Any, Any], int], state: StepState
) -> Make:
    """The hook of ``process_batch_result``. ``accepted(batch, result)`` is asked after the original ran."""
    in_flight = state.in_flight

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            prev = tl.cur
            batch = result = None
            ct = -1
            try:
                if tl.quiet:
                    tl.wake()
                t0 = mono()
                tl.cur = code
                tl.put((t0, code))
                batch = args[0] if args else kwargs.get("batch")
                result = args[1] if len(args) > 1 else kwargs.get("result")
                known = in_flight.pop(id(result), -1)
                ct = getattr(batch, "forward_iter", None) or known
                state.spent += mono() - t0
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    t1 = mono()
                    tl.cur = prev
                    tl.put((t1, prev))
                    rows.add((ct, t1, accepted(batch, result), -1))
                    state.spent += mono() - t1
                except BaseException as error:
                    fail(error)

        return hook

    return make
