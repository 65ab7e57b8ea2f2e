"""The hooks of ``run_batch`` and of ``process_batch_result``: a row a step, a row a result.

Scalars are copied *before* the original runs: under the overlap scheduler the batch is changed while it runs,
and ``process_batch_result`` gets a copy one step later. They go out as pairs of the time line (see ``timeline``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu import GpuTimer
from .nvtx import Ranges
from .patches import Fail, Make
from .timeline import (
    ACCEPTED,
    RESULT,
    SPENT,
    STEP_BS,
    STEP_CACHED,
    STEP_DECODE,
    STEP_DECODING,
    STEP_END,
    STEP_GRAPH,
    STEP_MODE,
    STEP_RAISED,
    STEP_TOKENS,
    Timeline,
    mono,
)

MAX_IN_FLIGHT = 64
MEASURE_MASK = 7
"""Hooks measure themselves in one step of eight: reading the clock is the larger part of what they do."""

ReadBatch = Callable[[Any], tuple[int, int, int, int, int]]
"""batch → mode, requests, tokens, tokens of decoding requests, cached tokens"""


class StepState:
    """What the hooks of one step hand to each other; main thread only.

    ``by_result``: the batch that ``process_batch_result`` gets does not know its step, so its result must.
    """

    __slots__ = ("by_result", "ct", "graph", "in_flight")

    def __init__(self, by_result: bool) -> None:
        self.by_result = by_result
        self.ct = -1
        """forward_ct of the step that runs, or ran last"""
        self.graph = -1
        """the last target forward, where its hook writes rows and no pairs: 1 graph, 0 eager, -1 unknown"""
        self.in_flight: dict[int, int] = {}
        """id of a result that is not processed yet → its forward_ct"""


def run_batch(
    scheduler: Any,
    tl: Timeline,
    code: int,
    decode: int,
    read: ReadBatch,
    state: StepState,
    gpu: GpuTimer | None,
    ranges: Ranges,
    forward_pairs: bool,
) -> Make:
    """The hook of ``run_batch``. ``forward_ct`` counts up at its top in every version.

    ``decode``: number of the mode DECODE, whose batches are read here and not by ``read``. ``forward_pairs``: the
    forward's hook writes pairs, which say whether a graph was used.
    """
    in_flight, by_result = state.in_flight, state.by_result

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            t0 = mono()
            prev = tl.cur
            ct = -1
            try:
                if tl.quiet:
                    tl.wake()
                tl.cur = code
                ct = state.ct = scheduler.forward_ct + 1
                batch = args[0] if args else kwargs["batch"]
                if batch.forward_mode == decode:
                    tl.put((t0, code, len(batch.reqs), STEP_DECODE))
                else:
                    mode, bs, tokens, decoding, cached = read(batch)
                    begun = (t0, code, mode, STEP_MODE, bs, STEP_BS, tokens, STEP_TOKENS)
                    tl.put((*begun, decoding, STEP_DECODING, cached, STEP_CACHED))
                if ranges.on:
                    ranges.push(read(batch))
                if tl.measure:
                    tl.spent += mono() - t0
            except BaseException as error:
                fail(error)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                try:
                    tl.cur = prev
                    tl.put((mono(), prev, 0, STEP_RAISED))
                    if ranges.depth:
                        ranges.pop()
                except BaseException as error:
                    fail(error)
                raise
            try:
                t1 = mono()
                tl.cur = prev
                if not forward_pairs:
                    _graph(tl, state, gpu, result)
                if by_result:
                    if len(in_flight) >= MAX_IN_FLIGHT:
                        in_flight.clear()
                    in_flight[id(result)] = ct
                if ranges.depth:
                    ranges.pop()
                if tl.measure:
                    tl.measure = False
                    spent = tl.spent + mono() - t1 + (0 if gpu is None else gpu.unseen_ns)
                    tl.put((t1, prev, max(0, spent), SPENT, ct, STEP_END))
                else:
                    tl.put((t1, prev, ct, STEP_END))
                    if ct & MEASURE_MASK == 0:
                        tl.measure = True
                        tl.spent = 0
                        if gpu is not None:
                            gpu.unseen_ns = 0
            except BaseException as error:
                fail(error)
            return result

        return hook

    return make


def _graph(tl: Timeline, state: StepState, gpu: GpuTimer | None, result: Any) -> None:
    graph = state.graph
    if gpu is not None:
        gpu.step_end(result)
    if graph < 0:
        used = getattr(result, "can_run_cuda_graph", None)
        graph = -1 if used is None else 1 if used else 0
    state.graph = -1
    tl.put((graph, STEP_GRAPH))


def process_batch_result(tl: Timeline, code: int, accepted: Callable[[Any, Any], int] | None, state: StepState) -> Make:
    """The hook of ``process_batch_result``. ``accepted(batch, result)`` is asked after the original ran."""
    in_flight, by_result = state.in_flight, state.by_result

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            t0 = mono()
            prev = tl.cur
            batch = None
            ct = -1
            try:
                if tl.quiet:
                    tl.wake()
                tl.cur = code
                tl.put((t0, code))
                batch = args[0] if args else kwargs["batch"]
                # Read now: a batch that is not a copy may have run again when this returns.
                ct = in_flight.pop(id(_result(args, kwargs)), -1) if by_result else batch.forward_iter
                if tl.measure:
                    tl.spent += mono() - t0
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    t1 = mono()
                    tl.cur = prev
                    if accepted is None:
                        tl.put((t1, prev, ct, RESULT))
                    else:
                        tl.put((t1, prev, accepted(batch, _result(args, kwargs)), ACCEPTED, ct, RESULT))
                    if tl.measure:
                        tl.spent += mono() - t1
                except BaseException as error:
                    fail(error)

        return hook

    return make


def _result(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("result")
