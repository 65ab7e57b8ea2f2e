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
MEASURE_MASK = 7
"""Hooks measure themselves in one step of eight: reading the clock is the larger part of what they do."""

ReadBatch = Callable[[Any], tuple[int, int, int, int, int]]
"""batch → mode, requests, tokens, tokens of decoding requests, cached tokens"""


UNKNOWN = (-1, -1, -1, -1, -1)


class StepState:
    """What the hooks of one step hand to each other; main thread only.

    ``by_result``: the batch that ``process_batch_result`` gets does not know its step, so its result must.
    """

    __slots__ = ("by_result", "ct", "graph", "in_flight", "measure", "scalars", "spent")

    def __init__(self, by_result: bool) -> None:
        self.by_result = by_result
        self.ct = -1
        """forward_ct of the step that runs, or ran last"""
        self.graph = -1
        """the last target forward: 1 graph, 0 eager, -1 unknown"""
        self.scalars = UNKNOWN
        """what was read of the batch that runs"""
        self.measure = False
        """hooks measure themselves until the next step row"""
        self.spent = 0
        """ns in hooks since the last step row"""
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
    in_flight, by_result = state.in_flight, state.by_result
    data, put, limit = rows.data, rows.put, rows.limit

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            t0 = mono()
            prev = tl.cur
            scalars = UNKNOWN
            ct = -1
            try:
                if tl.quiet:
                    tl.wake()
                tl.cur = code
                tl.put((t0, code))
                ct = state.ct = scheduler.forward_ct + 1
                state.graph = -1
                state.scalars = scalars = read(args[0] if args else kwargs["batch"])
                if ranges.on:
                    ranges.push(scalars)
                if state.measure:
                    state.spent += mono() - t0
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
                t1 = mono()
                tl.cur = prev
                tl.put((t1, prev))
                if ranges.depth:
                    ranges.pop()
                if gpu is not None:
                    gpu.step_end(result)
                if by_result:
                    if len(in_flight) >= MAX_IN_FLIGHT:
                        in_flight.clear()
                    in_flight[id(result)] = ct
                graph = state.graph
                if graph < 0:
                    used = getattr(result, "can_run_cuda_graph", None)
                    if used is not None:
                        graph = 1 if used else 0
                mode, bs, tokens, decode, cached = scalars
                state.scalars = UNKNOWN
                spent = -1
                if state.measure:
                    spent = state.spent + mono() - t1
                    state.measure = False
                elif ct & MEASURE_MASK == 0:
                    state.measure = True
                    state.spent = 0
                if len(data) < limit:
                    put((ct, mode, t0, t1, bs, tokens, decode, cached, graph, spent))
                else:
                    rows.lost += 1
            except BaseException as error:
                fail(error)
            return result

        return hook

    return make


def process_batch_result(
    tl: Timeline, code: int, rows: Rows, accepted: Callable[[Any, Any], int] | None, state: StepState
) -> Make:
    """The hook of ``process_batch_result``. ``accepted(batch, result)`` is asked after the original ran."""
    in_flight, by_result = state.in_flight, state.by_result
    data, put, limit = rows.data, rows.put, rows.limit

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            t0 = mono()
            prev = tl.cur
            batch = result = None
            ct = -1
            try:
                if tl.quiet:
                    tl.wake()
                tl.cur = code
                tl.put((t0, code))
                batch, result = args if len(args) == 2 else _arguments(args, kwargs)
                # Read now: a batch that is not a copy may have run again when this returns.
                ct = in_flight.pop(id(result), -1) if by_result else batch.forward_iter
                if state.measure:
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
                    taken = -1 if accepted is None else accepted(batch, result)
                    if len(data) < limit:
                        put((-1 if ct is None else ct, t1, taken, -1))
                    else:
                        rows.lost += 1
                    if state.measure:
                        state.spent += mono() - t1
                except BaseException as error:
                    fail(error)

        return hook

    return make


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    batch = args[0] if args else kwargs["batch"]
    return batch, args[1] if len(args) > 1 else kwargs["result"]
