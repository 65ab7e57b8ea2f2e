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
from .timeline import IDLE, OTHER, QUIET_IDLE, QUIET_PAUSED, Timeline, mono


def stage(tl: Timeline, code: int) -> Make:
    """A stage: a mark at its begin, a mark of what goes on after it at its end."""

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            prev = tl.cur
            try:
                tl.cur = code
                tl.put((mono(), code))
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    tl.cur = prev
                    tl.put((mono(), prev))
                except BaseException as error:
                    fail(error)

        return hook

    return make


def turn(tl: Timeline, code: int, paused: Callable[[], bool]) -> Make:
    """The stage at the head of a turn of the loop (receiving requests)."""

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                tl.begin_turn(paused())
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
            except BaseException as error:
                fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    tl.cur = prev
                    tl.put((mono(), prev))
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
