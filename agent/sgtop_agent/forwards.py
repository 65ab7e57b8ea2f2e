"""Forwards, the children of a step: (runner, mode), host times, GPU times, graph or not.

The target's and the draft's ``ModelRunner.forward``, and the draft's graph runners, which bypass it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu import GpuTimer
from .patches import Fail, Make
from .rows import Rows
from .steps import StepState
from .timeline import FORWARD, FORWARD_EAGER, FORWARD_GRAPH, FORWARD_UNKNOWN, Timeline, mono

WIDTH = 11
TARGET, DRAFT = 0, 1

ReadForward = Callable[[Any], tuple[int, int, int]]
"""ForwardBatch → mode, batch size, input tokens"""


def emitter(rows: Rows) -> Callable[[tuple[int, ...], int, int, int], None]:
    """For ``GpuTimer``: puts the GPU times into a row that waited for them."""

    def emit(row: tuple[int, ...], gpu0: int, gpu1: int, gpu2: int) -> None:
        ct, runner, mode, t0, t1, bs, tokens, graph = row
        rows.add((ct, runner, mode, t0, t1, gpu0, gpu1, gpu2, bs, tokens, graph))

    return emit


def only_forward(tl: Timeline) -> Make:
    """The hook of ``forward`` where a step has one forward, of its own batch, and no GPU event: two pairs.

    The decoder makes the row, with what was read of the batch.
    """

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                t0 = mono()
                tl.put((t0, FORWARD))
                if tl.measure:
                    tl.spent += mono() - t0
            except BaseException as error:
                fail(error)
            output = original(*args, **kwargs)
            try:
                t1 = mono()
                try:
                    tl.put((t1, FORWARD_GRAPH if output.can_run_graph else FORWARD_EAGER))
                except AttributeError:
                    tl.put((t1, FORWARD_UNKNOWN))
                if tl.measure:
                    tl.spent += mono() - t1
            except BaseException as error:
                fail(error)
            return output

        return hook

    return make


def forward(
    runner: int,
    tl: Timeline,
    rows: Rows,
    read: ReadForward,
    state: StepState,
    gpu: GpuTimer | None,
    graph_only: bool = False,
) -> Make:
    """The hook of a runner's ``forward`` (or, ``graph_only``, of a draft graph runner's ``execute``/``replay``)."""
    target = runner == TARGET
    data, put, limit = rows.data, rows.put, rows.limit

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            t0 = mono()
            slot = before = None
            mode = bs = tokens = -1
            try:
                mode, bs, tokens = read(args[0] if args else kwargs["forward_batch"])
                if gpu is not None:
                    slot = gpu.begin()
                    before = gpu.current
                    gpu.current = slot
                if tl.measure:
                    tl.spent += mono() - t0
            except BaseException as error:
                fail(error)
            try:
                output = original(*args, **kwargs)
            except BaseException:
                if gpu is not None:
                    gpu.current = before
                    if slot is not None:
                        gpu.drop(slot)
                raise
            try:
                t1 = mono()
                if graph_only:
                    graph = 1
                else:
                    used = getattr(output, "can_run_graph", None)
                    graph = -1 if used is None else 1 if used else 0
                if target:
                    state.graph = graph
                if gpu is not None:
                    gpu.current = before
                if gpu is not None and slot is not None:
                    gpu.end(slot, (state.ct, runner, mode, t0, t1, bs, tokens, graph), target)
                elif len(data) < limit:
                    put((state.ct, runner, mode, t0, t1, -1, -1, -1, bs, tokens, graph))
                else:
                    rows.lost += 1
                if tl.measure:
                    tl.spent += mono() - t1
            except BaseException as error:
                fail(error)
            return output

        return hook

    return make


def late_exit(gpu: GpuTimer) -> Make:
    """A preparation inside a forward (``load_batch``, ``replay_prepare``): the GPU's share begins after it."""
    late = gpu.late

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                late()
            except BaseException as error:
                fail(error)
            return result

        return hook

    return make


def late_entry(gpu: GpuTimer) -> Make:
    """The launch itself (``backend.replay``): the GPU's share begins with it."""
    late = gpu.late

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                late()
            except BaseException as error:
                fail(error)
            return original(*args, **kwargs)

        return hook

    return make
