"""One run of CUPTI tracing, from enable to the last buffer. All of CUPTI's state changes are here, under one lock.

``enable`` and ``disable`` belong on the scheduler's main thread between two steps, where no launch is under way;
``settle`` and ``health`` on the agent's thread. ``release`` may come from the main thread at any time (the user
starts a profile) and must leave nothing of ours in CUPTI.
"""

from __future__ import annotations

import _thread
import time

from .cupti import Cupti, CuptiError
from .helper import Helper

UNTIMED_SHARE = 0.01
"""Records without timestamps above this share end tracing: CUPTI's device buffers are not given back."""
UNTIMED_MIN = 1000
"""Records before the share says anything."""
SETTLE_NS = 400_000_000
"""Longest wait for buffers after kernels are disabled, before a forced flush."""


class Session:
    """CUPTI and the ring, switched on and off."""

    def __init__(self, cupti: Cupti, helper: Helper) -> None:
        self.cupti, self.helper = cupti, helper
        self._lock = _thread.allocate_lock()
        self.on = False
        self.epoch = 0
        self.t_on = self.t_off = 0
        self.enable_ns = self.disable_ns = 0
        """Main-thread time of the last switch."""
        self._start = helper.counters()
        self._while_on = self.since_start()
        """Counters of the session when it was switched off: what CUPTI gives back afterwards was cut."""
        self._heard = 0, 0, 0
        """Buffers of this session when ``trouble`` last saw new ones, forward passes by then, and when that was."""
        self._quiet = 0
        self._lent = -1

    def enable(self) -> None:
        """Take the callbacks and enable the kinds.

        Raises:
            CuptiError: CUPTI refused; nothing is enabled.
        """
        with self._lock:
            t0 = time.monotonic_ns()
            self._start = self.helper.counters()
            self.cupti.register(self.helper.request, self.helper.complete)
            self.cupti.buffers_are_zeroed(True)
            self.epoch = self.helper.begin()
            try:
                self.cupti.enable()
            except CuptiError:
                self.helper.hold(0)
                self.cupti.buffers_are_zeroed(False)
                raise
            self.t_on = time.monotonic_ns()
            self.enable_ns = self.t_on - t0
            self._heard = 0, 0, self.t_on
            self.on = True  # last: other threads read the times once they see this

    def disable(self) -> None:
        """Disable the kinds; buffers come back while ``settle`` is called. Safe to call again."""
        with self._lock:
            self._disable()

    def _disable(self) -> None:
        if not self.on:
            return
        t0 = time.monotonic_ns()
        self._while_on = self.since_start()
        try:
            self.cupti.disable()
        finally:
            self._quiet, self._lent = 0, -1
            self.t_off = time.monotonic_ns()
            self.disable_ns = self.t_off - t0
            self.on = False  # after the times: CUPTI's calls let the agent's thread run, which notes them
            # Buffers lent from now on are cleared by CUPTI: the next to hand in buffers may be torch's profiler.
            self.cupti.buffers_are_zeroed(False)

    def settle(self) -> bool:
        """After ``disable``, every flush period: True once CUPTI has given back all it will."""
        with self._lock:
            if self.on:
                return False
            self.helper.hold(20)
            self.helper.flush(forced=False)
            lent = self.helper.counters()["lent"]
            self._quiet = self._quiet + 1 if lent == self._lent else 0
            self._lent = lent
            late = time.monotonic_ns() - self.t_off > SETTLE_NS
            if lent and not late and self._quiet < 2:
                return False
            if lent:
                self.helper.flush(forced=True)
            return True

    def release(self, timeout_ns: int) -> int:
        """Disable and get every buffer back, now, on this thread. Returns the buffers that CUPTI still holds."""
        if not self._lock.acquire(True, max(timeout_ns, 1) / 1e9):
            return -1
        try:
            deadline = time.monotonic_ns() + timeout_ns
            try:
                self._disable()
            except CuptiError:
                pass
            self.helper.hold(50)
            while True:
                self.helper.flush(forced=False)
                lent = self.helper.counters()["lent"]
                if not lent:
                    return 0
                if time.monotonic_ns() > deadline:
                    break
                time.sleep(0.005)
            self.helper.flush(forced=True)
            return self.helper.counters()["lent"]
        finally:
            self._lock.release()

    def since_start(self) -> dict[str, int]:
        """Counters of this session; the gauges ``lent``, ``on`` and ``last_error`` as they are."""
        now = self.helper.counters()
        return {k: v if k in ("lent", "on", "last_error", "epoch") else v - self._start[k] for k, v in now.items()}

    def trouble(self, steps: int, *, patience_ns: int) -> str | None:
        """Why tracing should stop, or None. ``steps``: forward passes since it was enabled.

        Steps without a buffer for ``patience_ns`` mean that another tool took CUPTI's callbacks, whenever it did.
        """
        c = self.since_start()
        now = time.monotonic_ns() if self.on else self.t_off
        if c["completed"] != self._heard[0]:
            self._heard = c["completed"], steps, now
        # Not those that ran, or waited to run, when the window ended: they come without times, and on a server of
        # prefills they are a tenth of a window (measured on an H200: 263 of 2,429).
        seen = c if self.on else self._while_on
        if seen["records"] >= UNTIMED_MIN and seen["untimed"] > UNTIMED_SHARE * seen["records"]:
            return (
                f"{seen['untimed']} of {seen['records']} kernel records came without timestamps: CUPTI has run out of "
                "its own buffers; kernel tracing is off until the server is restarted"
            )
        completed, before, at = self._heard
        silent = steps - before
        if silent >= 3 and now - at >= patience_ns and (self.on or not completed):
            return (
                f"{silent} forward passes ran and CUPTI reported no kernel: another tool holds its callbacks, or an "
                "earlier profiler session has disabled it for the life of this process"
            )
        if c["malformed"] > 3:
            return f"{c['malformed']} buffers hold records of kinds that sgtop did not enable: another tool uses CUPTI"
        return None
