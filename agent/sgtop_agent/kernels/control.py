"""Kernel tracing as clients see it: windows, continuous or off, why not, and back again after the user's profile.

The agent's thread calls ``tick`` about every 50 ms and ``command`` for a client's frame. Neither blocks; what must run
on the scheduler's main thread is queued with ``Host.at_step`` and looked at in a later tick.
"""

from __future__ import annotations

import _thread
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from . import environment, guard, names
from .cupti import Cupti, CuptiError, expected_strides
from .environment import Environment
from .helper import SLOT_BYTES, SLOTS, NoHelper, obtain
from .profilers import ProfilerHooks
from .session import Session

MODES = ("off", "windows", "on")
WINDOW_S, PERIOD_S = 1.0, 10.0
TICK_NS = 50_000_000
STEP_PATIENCE_NS = 500_000_000
"""A disable that found no step boundary for this long (an idle or hung scheduler) is done from the agent's thread."""
_RESUME_NS = 500_000_000


class Host(Protocol):
    """What kernel tracing needs of the agent."""

    @property
    def scheduler(self) -> Any:
        """SGLang's scheduler."""

    def at_step(self, fn: Callable[[], None]) -> object:
        """Run ``fn`` once on the scheduler's main thread between two steps; False if that is not possible now."""

    def emit(self, frame: Mapping[str, Any]) -> None:
        """Send a frame to every client."""


class _Job:
    """A call for the main thread that either thread can claim, so that it runs once or not at all."""

    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn, self._claim = fn, _thread.allocate_lock()
        self.queued = time.monotonic_ns()
        self.done, self.error = False, ""

    def run(self) -> None:
        if not self._claim.acquire(False):
            return
        try:
            self._fn()
        except CuptiError as e:
            self.error = str(e)
        except BaseException as e:
            self.error = f"{type(e).__name__}: {e}"
        self.done = True

    def cancel(self) -> bool:
        """True if it will not run any more; False if it runs or has run."""
        return self._claim.acquire(False)


class _Busy(RuntimeError):
    """The user's profiler runs; try again later."""


class KernelControl:
    """Kernel tracing of one scheduler. Phases: idle, enabling, tracing, disabling, settling."""

    def __init__(self, host: Host, env: Environment | None = None) -> None:
        self._host = host
        self._scheduler = host.scheduler  # kept: the host may have let go of it when this closes
        self._env = env if env is not None else environment.current
        self._wishes: dict[int, tuple[str, float, float]] = {}
        self._mode, self._window_ns, self._period_ns = "off", int(WINDOW_S * 1e9), int(PERIOD_S * 1e9)
        self._session: Session | None = None
        self._hooks: ProfilerHooks | None = None
        self._phase = "idle"
        self._job: _Job | None = None
        self._yielded = False
        self._reason = ""
        self._failed = False
        self._next = 0
        self._ct0 = 0
        self._told = 0
        self._check_at = 0
        self._silent = 0
        self._windows: deque[list[int]] = deque(maxlen=16)
        self._ring = (SLOTS, SLOT_BYTES)

    # --- from clients --------------------------------------------------------------------------------------------

    def command(self, client: int, args: Mapping[str, Any]) -> dict[str, Any]:
        """Set what ``client`` wants: ``mode`` (off, windows, on), ``window_s``, ``period_s``. Returns the state.

        The strongest wish of all clients holds. Asking again after a failure tries again.

        Raises:
            ValueError: arguments that make no sense, in words.
        """
        mode = args.get("mode")
        if mode not in MODES:
            raise ValueError(f"kernels: mode must be one of {', '.join(MODES)}")
        try:
            window, period = float(args.get("window_s", WINDOW_S)), float(args.get("period_s", PERIOD_S))
        except (TypeError, ValueError):
            raise ValueError("kernels: window_s and period_s are numbers of seconds")
        if not 0.05 <= window <= 60 or not window < period <= 3600:
            raise ValueError("kernels: a window lasts 0.05 to 60 s and its period is longer, at most 3600 s")
        if mode == "off":
            self._wishes.pop(client, None)
        else:
            self._wishes[client] = (str(mode), window, period)
            if self._phase == "idle":
                self._failed, self._reason, self._silent = False, "", 0
                self._prepare()
        self._settle_wishes()
        return self.state()

    def gone(self, client: int) -> None:
        """A client left; what it wanted no longer counts."""
        if self._wishes.pop(client, None) is not None:
            self._settle_wishes()

    def names(self, pointers: list[Any]) -> dict[str, str | None]:
        """Kernel names by pointer in hex, of pointers that stand in records; None where none can be read."""
        good = [p for p in pointers if isinstance(p, int) and not isinstance(p, bool)]
        return {f"{p:x}": name for p, name in names.resolve(good).items()}

    def reader_fd(self) -> int | None:
        """The read-only descriptor of the ring, to send to a client; it stays open here. None: there is no ring."""
        return self._session.helper.fd if self._session else None

    def _settle_wishes(self) -> None:
        mode = max((w[0] for w in self._wishes.values()), key=MODES.index, default="off")
        if mode == "windows":
            self._window_ns = int(max(w[1] for w in self._wishes.values()) * 1e9)
            self._period_ns = max(int(min(w[2] for w in self._wishes.values()) * 1e9), self._window_ns + TICK_NS)
        if mode != self._mode:
            self._mode = mode
            self._next = 0
        if mode == "off" and self._phase == "idle":
            self._let_go()

    # --- getting ready -------------------------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        self._failed, self._reason = True, why

    def _prepare(self) -> None:
        """Everything that can be known before the main thread is asked."""
        try:
            why = guard.other_tracer(self._env)
            if why is None and self._session is None:
                path, why = guard.library(self._env)
                if path is not None:
                    cupti = Cupti(path)
                    why = guard.version(cupti.version, self._env, self._scheduler)
                    if why is None:
                        strides = cupti.strides()
                        if strides != expected_strides(cupti.version):
                            self._note(f"records of CUPTI {cupti.version} have lengths {strides}, as measured here")
                        self._session = Session(cupti, obtain(cupti.version, strides, *self._ring))
            if why is not None:
                self._fail(why)
                return
            assert self._session is not None
            cupti = self._session.cupti
            self._session.helper.functions(
                cupti.address("cuptiActivityFlushAll"),
                cupti.address("cuptiGetTimestamp"),
                cupti.address("cuptiActivityGetNumDroppedRecords"),
            )
            if self._hooks is None:
                self._hooks = ProfilerHooks(self._scheduler, self._before_profile)
        except (CuptiError, NoHelper, OSError) as e:
            self._fail(str(e))

    def _note(self, text: str) -> None:
        self._host.emit({"k": "note", "t": time.monotonic_ns(), "level": "info", "text": f"kernels: {text}"})

    def _let_go(self) -> None:
        """Off: the flush thread ends and the hooks come off; helper and ring stay for the next time."""
        if self._hooks is not None:
            self._hooks.undo()
            self._hooks = None
        if self._session is not None:
            self._session.helper.stop(20)
        self._yielded = False

    # --- on the scheduler's main thread --------------------------------------------------------------------------

    def _enable(self) -> None:
        session, hooks = self._session, self._hooks
        assert session is not None
        if (hooks is not None and hooks.in_progress()) or self._env.profiler_active():
            raise _Busy("a torch profiler is running in the server")
        session.enable()

    def _disable(self) -> None:
        if self._session is not None:
            self._session.disable()

    def _before_profile(self) -> None:
        """The user starts a profile: when this returns, CUPTI is free."""
        self._yielded = True
        job, session = self._job, self._session
        if job is not None:
            job.cancel()
        if session is not None:
            session.release(150_000_000)

    # --- the agent's thread --------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return self._phase != "idle" or self._mode != "off"

    def tick(self, now: int) -> None:
        """Move on. ``now``: CLOCK_MONOTONIC ns."""
        if not self.active:
            return
        phase = self._phase
        try:
            if self._yielded:
                self._while_yielded(now)
            elif phase == "idle":
                self._maybe_begin(now)
            elif phase == "enabling":
                self._enabling(now)
            elif phase == "tracing":
                self._tracing(now)
            elif phase == "disabling":
                self._disabling(now)
            elif phase == "settling":
                self._settling(now)
        except (CuptiError, NoHelper) as e:
            self._fail(str(e))
            self._end(now)
        if self._phase != phase or now - self._told > 1_000_000_000:
            self._told = now
            self._host.emit(self.state())

    def _while_yielded(self, now: int) -> None:
        job, session = self._job, self._session
        if job is not None and not job.cancel() and not job.done:
            return  # it runs this very moment
        if session is not None and session.on:  # queued in the instant of the yield, it ran after the profile
            session.release(50_000_000)
        if self._phase in ("tracing", "disabling", "settling"):
            self._note_window()
        self._phase, self._job = "idle", None
        if self._hooks is not None and self._hooks.in_progress():
            self._next = now + _RESUME_NS
        elif now >= self._next:
            self._yielded = False
        if self._mode == "off":
            self._let_go()

    def _maybe_begin(self, now: int) -> None:
        if self._failed or now < self._next:
            return
        self._ct0 = self._steps()
        if self._queue(self._enable):
            self._phase = "enabling"
        else:
            self._next = now + _RESUME_NS

    def _enabling(self, now: int) -> None:
        job = self._job
        assert job is not None
        if job.done:
            if not job.error:
                self._phase, self._job, self._reason = "tracing", None, ""
                self._check_at = now + 1_000_000_000
                self._ct0 = self._steps()
            elif job.error.startswith("_Busy"):
                self._phase, self._job, self._reason = "idle", None, job.error.partition(": ")[2]
                self._next = now + _RESUME_NS
            else:
                self._phase, self._job = "idle", None
                self._fail(job.error)
        elif self._mode == "off" and job.cancel():
            self._end(now)

    def _tracing(self, now: int) -> None:
        session = self._session
        assert session is not None
        over = self._mode == "off" or (self._mode == "windows" and now - session.t_on >= self._window_ns)
        if not over and now >= self._check_at:
            self._check_at = now + 1_000_000_000
            why = session.trouble(self._steps() - self._ct0, patience_ns=2_000_000_000)
            if why is not None:
                self._fail(why)
                over = True
        if over:
            if not self._queue(self._disable):
                self._disable()  # no boundary will come (the agent is leaving): this thread will do as well
            self._phase = "disabling"

    def _queue(self, fn: Callable[[], None]) -> bool:
        self._job = job = _Job(fn)
        try:
            return self._host.at_step(job.run) is not False
        except Exception:  # no boundary to run at: the job ages and is done from here, or tried again
            return False

    def _disabling(self, now: int) -> None:
        job = self._job
        assert job is not None
        on = self._session is not None and self._session.on
        if on and not job.done:
            if now - job.queued < STEP_PATIENCE_NS:
                return
            if job.cancel():
                self._disable()
        elif job.error:
            self._fail(job.error)
        self._note_window()  # now, not when all is read: sgtop needs the end to know which kernels it cut
        self._phase, self._job = "settling", None

    def _settling(self, now: int) -> None:
        session = self._session
        assert session is not None
        if not session.settle():
            return
        steps = self._steps() - self._ct0
        why = session.trouble(steps, patience_ns=0 if self._silent else 1 << 62)
        if why is not None:
            self._fail(why)
        elif steps >= 3:
            # One window without a kernel may be bad luck; the next one is believed.
            self._silent = 0 if session.since_start()["completed"] else self._silent + 1
        self._note_window()
        self._end(now)

    def _note_window(self) -> None:
        s = self._session
        if s is not None and (not self._windows or self._windows[-1][0] != s.epoch):
            self._windows.append([s.epoch, s.t_on, s.t_off, s.enable_ns, s.disable_ns])

    def _end(self, now: int) -> None:
        self._phase, self._job = "idle", None
        started = self._session.t_on if self._session is not None else now
        self._next = max(now, started + self._period_ns) if self._mode == "windows" else now
        if self._mode == "off" or self._failed:
            self._let_go()

    def _steps(self) -> int:
        n = getattr(self._scheduler, "forward_ct", 0)
        return n if isinstance(n, int) else 0

    def close(self, timeout_s: float = 0.8) -> None:
        """The agent leaves: everything off, on this thread, in at most about ``timeout_s``."""
        self._wishes.clear()
        self._mode = "off"
        deadline = time.monotonic_ns() + int(timeout_s * 1e9)
        try:
            if self._phase == "tracing":
                self._tracing(time.monotonic_ns())
            while self._phase != "idle" and time.monotonic_ns() < deadline:
                self.tick(time.monotonic_ns())
                time.sleep(0.02)
        finally:
            if self._session is not None:
                if self._job is not None:
                    self._job.cancel()
                self._session.release(50_000_000)
                self._session.helper.stop(250)
            self._phase = "idle"
            self._let_go()

    # --- state ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The ``kernels`` frame: what is on, why not, what it costs, what was lost."""
        s = self._session
        if self._failed:
            state = "failed"
        elif self._yielded:
            state = "yielded"
        elif self._mode == "off" and self._phase == "idle":
            state = "off"
        elif self._phase == "idle":
            state = "waiting"
        else:
            state = self._phase
        reason = self._reason
        if state == "yielded":
            reason = "SGLang's profiler runs; kernel tracing comes back afterwards"
        return {
            "k": "kernels",
            "t": time.monotonic_ns(),
            "mode": self._mode,
            "state": state,
            "reason": reason,
            "window_s": self._window_ns / 1e9,
            "period_s": self._period_ns / 1e9,
            "cupti": s.cupti.version if s else None,
            "ring_bytes": s.helper.bytes if s else 0,
            "epoch": s.epoch if s else 0,
            "on": [s.epoch, s.t_on] if s is not None and s.on else None,
            "windows": list(self._windows),
            "counters": s.helper.counters() if s else {},
        }
