"""Hooks that mark the stages of the event loop. See ``timeline`` for what a mark is.

Every hook has the same shape: its own work in ``try``, the original outside of it, so that nothing of ours can
reach SGLang and nothing of SGLang's is swallowed. Locals of the closure are all a hook needs: no object is made,
no attribute of a module looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .boundary import Boundary
from .patches import Fail, Make
from .timeline import CAPACITY, IDLE, OTHER, QUIET_IDLE, QUIET_PAUSED, Timeline, mono


def stage(tl: Timeline, code: int, open_end: bool = False) -> Make:
    """A stage: a mark at its begin, a mark of what goes on after it at its end.

    ``open_end``: the next stage follows at once, and its mark ends this one.
    """

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            prev = tl.cur
            try:
                t = mono()
                tl.cur = code
                tl.put((t, code))
                if tl.measure:
                    tl.spent += mono() - t
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    t = mono()
                    tl.cur = prev
                    tl.put((t, prev))
                    if tl.measure:
                        tl.spent += mono() - t
                except BaseException as error:
                    fail(error)

        def open_hook(*args: Any, **kwargs: Any) -> Any:
            try:
                t = mono()
                tl.put((t, code))
                if tl.measure:
                    tl.spent += mono() - t
            except BaseException as error:
                fail(error)
            return original(*args, **kwargs)

        return open_hook if open_end else hook

    return make


def turn(tl: Timeline, code: int, flags: Any, open_end: bool = False) -> Make:
    """The stage at the head of a turn of the loop (receiving requests). ``flags._engine_paused``: is it paused."""
    marks = tl.marks

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                paused = flags._engine_paused
                if tl.quiet or paused or len(marks) > CAPACITY:
                    tl.begin_turn(paused)
                tl.cur = code
                tl.put((mono(), code))
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    tl.cur = OTHER
                    tl.put((mono(), OTHER))
                except BaseException as error:
                    fail(error)

        def open_hook(*args: Any, **kwargs: Any) -> Any:
            try:
                paused = flags._engine_paused
                if tl.quiet or paused or len(marks) > CAPACITY:
                    tl.begin_turn(paused)
                t = mono()
                tl.cur = OTHER
                tl.put((t, code))
                if tl.measure:
                    tl.spent += mono() - t
            except BaseException as error:
                fail(error)
            return original(*args, **kwargs)

        return open_hook if open_end else hook

    return make


def sample(tl: Timeline, code: int, sampled: Callable[[], None]) -> Make:
    """``launch_batch_sample_if_needed``: a stage where a sampling was delayed, else nothing worth a mark.

    ``sampled`` is called when a delayed sampling was launched.
    """
    marked = stage(tl, code)

    def make(original: Any, fail: Fail) -> Any:
        slow = marked(original, fail)

        def hook(*args: Any, **kwargs: Any) -> Any:
            delayed = False
            try:
                result = args[0] if args else kwargs.get("batch_result")
                delayed = result is not None and result.delay_sample_func is not None
            except BaseException as error:
                fail(error)
            if not delayed:
                return original(*args, **kwargs)
            try:
                return slow(*args, **kwargs)
            finally:
                try:
                    sampled()
                except BaseException as error:
                    fail(error)

        return hook

    return make


def boundary(tl: Timeline, code: int, steps: Boundary, tick: Callable[[int], None], period_ns: int) -> Make:
    """``get_next_batch_to_run``: runs what waits for a step boundary; ``tick(now)`` at most every ``period_ns``."""
    pending = steps.pending
    drain = steps.drain

    def make(original: Any, fail: Fail) -> Any:
        due = 0

        def hook(*args: Any, **kwargs: Any) -> Any:
            nonlocal due
            prev = tl.cur
            try:
                if tl.quiet == QUIET_PAUSED:  # a turn that gets here is not paused any more
                    tl.wake()
                t = mono()
                tl.cur = code
                tl.put((t, code))
                if pending:
                    drain()
                if t >= due:
                    due = t + period_ns
                    tick(t)
                if tl.measure:
                    tl.spent += mono() - t
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    t = mono()
                    tl.cur = prev
                    tl.put((t, prev))
                    if tl.measure:
                        tl.spent += mono() - t
                except BaseException as error:
                    fail(error)

        return hook

    return make


def idle(tl: Timeline, after: Callable[[], None]) -> Make:
    """``on_idle``: the turn found no work. ``after`` runs at its end (polling GPU events)."""

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                if tl.quiet != QUIET_IDLE:  # else the idle stage is open already
                    tl.put((mono(), IDLE))
                tl.cur = IDLE
                tl.inside_idle = True
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    tl.inside_idle = False
                    tl.cur = OTHER
                    tl.rest()
                    after()
                except BaseException as error:
                    fail(error)

        return hook

    return make
