"""SGLang's own profiler comes first: its start is wrapped, so that sgtop has let go of CUPTI before.

torch's profiler and sgtop share one pair of buffer callbacks and one switch a kind. Where both were on, the user's
trace would be empty. Names by version, found by looking:

* 0.5.12: the scheduler itself, ``start_profile``, and its ``_profile_manager`` (with SGLANG_PROFILE_V2)
* 0.5.14 and later: ``scheduler.profiler_manager``, ``_start_profile``, and its ``_profile_manager``

The V2 manager hands its bound methods to a trigger when it is made, so the trigger's ``on_start`` is wrapped too.
The end of a profile is read from the managers' own state: that also covers a start that failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class ProfilerHooks:
    """Hooks around the profiler managers of one scheduler."""

    def __init__(self, scheduler: Any, before_start: Callable[[], None]) -> None:
        """Wrap what this version has. ``before_start`` runs on the scheduler's main thread, before each start."""
        self._before_start = before_start
        self._starting = 0
        self._undo: list[tuple[Any, str, Any, Any]] = []
        manager = getattr(scheduler, "profiler_manager", None)
        self._v1 = manager if manager is not None else scheduler
        self._v2 = getattr(self._v1, "_profile_manager", None)
        trigger = getattr(self._v2, "stage_based_trigger", None)
        for owner, name in (
            (self._v1, "_start_profile"),
            (self._v1, "start_profile"),
            (self._v2, "_do_start"),
            (trigger, "on_start"),
        ):
            original = getattr(owner, name, None)
            if owner is None or not callable(original) or not hasattr(owner, "__dict__"):
                continue
            wrapper = self._wrap(original)
            self._undo.append((owner, name, wrapper, vars(owner).get(name, _MISSING)))
            setattr(owner, name, wrapper)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            self._starting += 1  # the managers say "in progress" only once torch's profiler has started
            try:
                try:
                    self._before_start()
                except BaseException:
                    pass  # never into SGLang
                return original(*args, **kwargs)
            finally:
                self._starting -= 1

        return start

    @property
    def found(self) -> bool:
        """Whether this SGLang has a profiler manager that was recognised."""
        return bool(self._undo)

    def in_progress(self) -> bool:
        """Whether SGLang is profiling now, or starts to."""
        return (
            self._starting > 0
            or bool(getattr(self._v1, "profile_in_progress", False))
            or getattr(self._v2, "profiler", None) is not None
        )

    def undo(self) -> None:
        """Take the hooks off; one that somebody has wrapped since is left and does nothing more."""
        self._before_start = _nothing
        while self._undo:
            owner, name, wrapper, before = self._undo.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _nothing() -> None:
    return None
