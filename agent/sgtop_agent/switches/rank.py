"""The switches of one rank, on its scheduler's main thread: follow the page's word, and on the leader write it.

The hooks here are apart from the agent's others and on top of them: one of those may switch itself off, this one must
not while a switch is flipped, or its rank would stay behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import versions
from ..patches import Fail, Make, Patches
from . import known, protocol
from .page import I_CLOSED, I_WORD, S_APPLIED, S_ARMED, S_BROKEN, S_SEEN, Page, applied_word

SLEEP_MS = 50
"""Longest sleep of an idle scheduler while switches are armed; SGLang's own is a second."""
GUARD_NS = 250_000_000


class Flags:
    """What the wrapped tests read. ``held``: sessions were opened, so a miss is not forced any more."""

    __slots__ = ("held", "state")

    def __init__(self) -> None:
        self.state = 0
        self.held = False


class RankSwitches:
    """Armed from ``arm`` to ``disarm``, both on the agent's thread.

    ``wanted``: the state that the leader brings the group to; the agent's thread stores it. ``guard(now)`` runs on
    the main thread at most four times a second, while something is flipped.
    """

    def __init__(
        self,
        scheduler: Any,
        loop: str,
        page: Page,
        rank: int,
        leader: bool,
        guard: Callable[[int], None],
        wake: Callable[[], None],
    ) -> None:
        self._scheduler, self._loop = scheduler, loop
        self.page, self.rank, self.leader = page, rank, leader
        self.flags = Flags()
        self.wanted = 0
        self.refused = ""
        """The leader's reason not to do what is wanted; the agent's thread takes it and changes ``wanted``."""
        self.waits = ""
        """What the leader waits for."""
        self.close_wanted = False
        self.log: deque[tuple[int, int, int]] = deque(maxlen=64)
        """(forward_ct, state, ns) of every change of this rank."""
        self.broken = ""
        self._guard, self._wake = guard, wake
        self._patches = Patches()
        self._graphs = known.graphs(scheduler)
        self._sessions = known.sessions(scheduler)
        self._guard_at = 0

    # --- agent's thread --------------------------------------------------------------------------

    def arm(self) -> str:
        """Put the hooks on; why not, in words, or an empty string. The slot says so once the main thread is there."""
        points = versions.loop_points(self._scheduler, self._loop)
        self._wire_graphs()
        flag = known.force_miss()
        if flag is not None and hasattr(flag, "__dict__"):
            self._patches.method("switch:radix", flag, "get", self._force_miss)
        sleeper = getattr(self._scheduler, "idle_sleeper", None)
        if callable(getattr(getattr(sleeper, "poller", None), "poll", None)):
            self._patches.method("switch:sleep", sleeper, "poller.poll", self._short_sleep)
        if self.leader and not self._patches.method("switch:idle", self._scheduler, points.idle or "", self._idle):
            self.disarm()
            return "the idle hook could not be set"
        if not self._patches.method("switch:boundary", self._scheduler, points.boundary or "", self._boundary):
            self.disarm()
            return "the boundary hook could not be set"
        return ""

    def disarm(self) -> None:
        """Take the hooks off and unmap the page: only once it is closed, or nothing was ever flipped on it."""
        self._patches.undo()
        self.flags.state = 0
        time.sleep(0.002)  # the main thread may be inside of a hook at this very moment
        self.page.close()

    def off_in_child(self) -> None:
        """In a forked child."""
        self._patches.undo()
        self.flags.state = 0

    def _wire_graphs(self) -> None:
        for points, bit in ((self._graphs.decode, known.DECODE), (self._graphs.prefill, known.PREFILL)):
            for runner, test in points:
                self._patches.method(f"switch:graph-{bit}", runner, test, self._graph_test(bit))

    # --- wrappers, on the main thread ------------------------------------------------------------

    def _graph_test(self, bit: int) -> Make:
        flags = self.flags

        def make(original: Any, fail: Fail) -> Any:
            def test(*args: Any, **kwargs: Any) -> Any:
                can = original(*args, **kwargs)  # always: what else it does must not depend on the switch
                return False if flags.state & bit else can

            return test

        return make

    def _force_miss(self, original: Any, fail: Fail) -> Any:
        flags, bit = self.flags, known.RADIX

        def get(*args: Any, **kwargs: Any) -> Any:
            if flags.state & bit and not flags.held:
                return True
            return original(*args, **kwargs)

        return get

    def _short_sleep(self, original: Any, fail: Fail) -> Any:
        def poll(timeout: Any = None, *args: Any, **kwargs: Any) -> Any:
            short = SLEEP_MS if timeout is None or timeout < 0 or timeout > SLEEP_MS else timeout
            return original(short, *args, **kwargs)

        return poll

    def _boundary(self, original: Any, fail: Fail) -> Any:
        step = self._step

        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                step()
            except BaseException as error:
                self._break(error)
            return original(*args, **kwargs)

        return hook

    def _idle(self, original: Any, fail: Fail) -> Any:
        idle = self._no_batch

        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                idle()
            except BaseException as error:
                self._break(error)
            return original(*args, **kwargs)

        return hook

    # --- main thread -----------------------------------------------------------------------------

    def _break(self, error: BaseException) -> None:
        """The hook stays: the next boundary tries again. The group flips nothing more."""
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise error
        try:
            self.broken = f"{type(error).__name__}: {error}"[:300]
            self.page.words[self.page.slot_at(self.rank) + S_BROKEN] = 1
        except Exception:
            pass  # the page is gone: the agent has left

    def _step(self) -> None:
        page, flags = self.page, self.flags
        words, at = page.words, page.slot_at(self.rank)
        ct = self._scheduler.forward_ct
        state = protocol.state_at(words[I_WORD], ct)
        if state != flags.state:
            flags.state = state
            words[at + S_APPLIED] = applied_word(state, ct)
            self.log.append((ct, state, time.monotonic_ns()))
            if not state & known.RADIX:
                flags.held = False
            self._wake()
        if state:
            # Sessions are opened by a broadcast request, so every rank sees the first one in the same turn. Closing
            # goes by each rank's clock; so once held, it stays so until the switch is back.
            if state & known.RADIX and self._sessions and not flags.held:
                flags.held = True
                self._wake()
            now = time.monotonic_ns()
            if now >= self._guard_at:
                self._guard_at = now + GUARD_NS
                self._guard(now)
        for holder, name, runner in self._graphs.watched:
            if getattr(holder, name) is not runner:  # captured anew, by a request that every rank got in this turn
                self._graphs = known.graphs(self._scheduler)
                self._wire_graphs()
                break
        words[at + S_SEEN] = ct
        if not words[at + S_ARMED]:
            words[at + S_ARMED] = 1
        if self.leader:
            self._lead(ct, protocol.at_boundary)

    def _no_batch(self) -> None:
        s = self._scheduler
        if s.waiting_queue or getattr(s.running_batch, "reqs", None) or getattr(s, "chunked_req", None) is not None:
            return
        self._lead(s.forward_ct, protocol.at_idle)

    def _lead(self, ct: int, decide: Callable[[int, int, list[protocol.Slot], int], protocol.Decision]) -> None:
        words = self.page.words
        word, wanted = words[I_WORD], self.wanted
        if words[I_CLOSED]:
            return
        if wanted == word >> 56 and (ct >= word & protocol.CT_MASK or decide is protocol.at_boundary):
            self.waits = ""
            if self.close_wanted and protocol.can_close(word, wanted, self.page.slots()):
                words[I_CLOSED] = 1
                self._wake()
            return
        done = decide(word, wanted, self.page.slots(), ct)
        if done.store is not None:
            words[I_WORD] = done.store
            self.waits = ""
            self._wake()
        elif done.refuse:
            self.refused = done.why
            self._wake()
        elif done.why:
            self.waits = done.why
