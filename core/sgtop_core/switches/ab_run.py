"""A B A B … A on a running server: steps on either side of each flip, and the switch left as it was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sgtop_agent.wire import Frame, WireError

from sgtop_core.model.figures import KEEP_S, Figures, StepLog
from sgtop_core.model.snapshot import Snapshot
from sgtop_core.switches.ab import NULL, Result, compare
from sgtop_core.switches.control import SwitchError, Switches
from sgtop_core.switches.own import OwnFlip

SKIP = 3
"""Steps after a change that belong to neither side: compiling, an overlapped step that was launched before."""
ARRIVE_S = 10.0
PENDING_S = 20.0
BACK_S = 5.0
MARGIN_S = 20.0
"""A flip's own timer runs this much longer than the stretch: if this process hangs, the flip goes back."""


class AbError(Exception):
    """Why there is no comparison. ``busy``: the server was not under load. ``left``: how the switch is left."""

    def __init__(self, text: str, busy: bool = True, mend: str = "") -> None:
        super().__init__(text)
        self.busy, self.mend = busy, mend
        self.left = "nothing was changed"


class StoppedError(Exception):
    """It was asked to stop; what it flipped is back, or goes back as its session ends."""


class Watched(Protocol):
    """What is needed of a session."""

    taps: list[Callable[[str, Frame, int], None]]
    switches: Switches

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    def hellos(self) -> dict[str, Frame | None]:
        """Every rank's hello."""

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """A command."""


class Logs:
    """A step log for each rank that leads a group, filled by a tap. Add it before anything is asked of it."""

    def __init__(self, session: Watched, keep_s: float = KEEP_S) -> None:
        self.leaders = [g.labels[0] for g in session.switches.groups()]
        hellos = session.hellos()
        self.of: dict[str, StepLog] = {}
        for label, hello in hellos.items():
            modes = (hello or {}).get("modes")
            self.of[label] = StepLog(modes if isinstance(modes, Mapping) else {}, keep_s)
        session.taps.append(self._tap)

    def _tap(self, label: str, frame: Frame, now: int) -> None:
        log = self.of.get(label)
        if log is not None and frame.get("k") == "ev":
            try:
                log.frame(frame)
            except (KeyError, WireError):
                pass  # the session says so itself

    def stretch(self, firsts: Mapping[str, int], since: int, until: int) -> Figures:
        """Figures of a stretch over all leaders: rates add up, the rest is their mean."""
        each = [self.of[label].stretch(firsts[label], since=since, until=until) for label in self.leaders]
        return each[0] if len(each) == 1 else _joined(each)


def _joined(each: Sequence[Figures]) -> Figures:
    def mean(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) / len(known) if known else None

    rates = [f.tokens_per_s for f in each if f.tokens_per_s is not None]
    return Figures(
        steps=sum(f.steps for f in each),
        seconds=max(f.seconds for f in each),
        step_ms=mean([f.step_ms for f in each]),
        tokens_per_s=sum(rates) if rates else None,
        gap_ms=mean([f.gap_ms for f in each]),
        hit_ratio=mean([f.hit_ratio for f in each]),
        graph_share=mean([f.graph_share for f in each]),
    )


def run(
    session: Watched,
    switch: str,
    rounds: int,
    each_s: float,
    say: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Flip A B A B … A and compare. ``stop`` is asked whenever there is something to wait for.

    Raises:
        AbError: no load, or a flip was refused; what was flipped here is back then, and nothing else was touched.
        StoppedError: ``stop`` said so.
    """
    return _Run(session, switch, each_s, say, sleep, stop).all(rounds)


class _Run:
    """One comparison."""

    def __init__(
        self,
        session: Watched,
        switch: str,
        each_s: float,
        say: Callable[[str], None],
        sleep: Callable[[float], None],
        stop: Callable[[], bool],
    ) -> None:
        self._session, self._switch, self._each_s = session, switch, each_s
        self._say, self._sleep, self._stop = say, sleep, stop
        self._asked = False
        """Whether a flip was asked for, whatever came of it."""
        self._own: OwnFlip | None = None

    def all(self, rounds: int) -> Result:
        """From the first A to the last."""
        try:
            try:
                return self._compare(rounds)
            except SwitchError as e:
                raise AbError(str(e), busy=False) from None
        except AbError as e:
            e.left = self._leave()
            raise
        except BaseException:
            self._leave()
            raise

    def _compare(self, rounds: int) -> Result:
        self._must_be_on()
        logs = Logs(self._session, 2 * self._each_s + KEEP_S)
        a: list[Figures] = []
        b: list[Figures] = []
        try:
            a.append(self._measure(logs, self._now(logs)))
            for i in range(rounds):
                self._say(f"round {i + 1} of {rounds}: off")
                b.append(self._measure(logs, self._flip(logs)))
                self._say(f"round {i + 1} of {rounds}: on")
                a.append(self._measure(logs, self._back(logs)))
        finally:
            self._session.taps.remove(logs._tap)
        return Result(self._switch, rounds, self._each_s, compare(a, b), tuple(a), tuple(b))

    # --- waiting ----------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self._sleep(seconds)
        if self._stop():
            raise StoppedError

    def _now(self, logs: Logs) -> dict[str, int]:
        """Leader → the step after the last that has arrived; waits for a first one."""
        end = time.monotonic() + ARRIVE_S
        out = {}
        for label in logs.leaders:
            while (last := logs.of[label].last()) is None:
                if time.monotonic() > end:
                    raise AbError(f"{label} makes no steps: compare under the load that matters")
                self._wait(0.02)
            out[label] = last + 1
        return out

    def _measure(self, logs: Logs, firsts: Mapping[str, int]) -> Figures:
        """A stretch from the steps ``firsts`` on, but the first few."""
        begin = {label: first + SKIP for label, first in firsts.items()}
        end = time.monotonic() + ARRIVE_S
        t0 = 0
        for label in logs.leaders:
            while (began := logs.of[label].began(begin[label])) is None:
                if time.monotonic() > end:
                    raise AbError(f"{label} makes no steps: compare under the load that matters")
                self._wait(0.02)
            t0 = max(t0, began)
        until = t0 + int(self._each_s * 1e9)
        self._wait(max(0.0, (until - time.monotonic_ns()) / 1e9) + 0.25)  # the agent flushes every 50 ms
        figures = logs.stretch(begin, t0, until)
        if figures.steps < 3:
            many = f"{figures.steps} step{'' if figures.steps == 1 else 's'} in {self._each_s:g} s"
            raise AbError(f"{many}: too few to compare; compare under load, or longer")
        return figures

    # --- the switch -------------------------------------------------------------------------------------

    def _must_be_on(self) -> None:
        """A is the server as it was started: what somebody else has off would be measured as on."""
        if self._switch == NULL:
            return
        for name, group in self._session.switches.list().items():
            row = next(s for s in group["switches"] if s["name"] == self._switch)
            if not row["available"]:
                raise AbError(f"{self._switch} cannot be switched on {name}: {row['reason']}", busy=False)
            if row["wanted"] == "off" or row["state"] != "on":
                by = f", by {row['owner']}" if row["owner"] else ""
                mend = f"wait until it is back, or: sgtop toggle {self._switch} on"
                raise AbError(f"{name}: {self._switch} is off already{by}", busy=False, mend=mend)

    def _flip(self, logs: Logs) -> dict[str, int]:
        """Switch off; leader → the step at which it took effect."""
        if self._switch == NULL:
            return self._now(logs)
        self._asked = True
        for_s = self._each_s + MARGIN_S + PENDING_S
        reply = self._session.command(None, "toggle", {"switch": self._switch, "on": False, "for_s": for_s})
        if not reply.get("ok"):
            raise AbError(str(reply.get("error")), busy=False)
        own = self._own = OwnFlip(self._switch, reply["result"])
        end = time.monotonic() + PENDING_S
        while True:
            seen = own.look(self._session.switches.list())
            if not seen.mine:
                raise AbError(f"{self._switch} was called off: {seen.why or 'it is not known why'}", busy=False)
            if seen.off:
                return self._steps()
            if time.monotonic() > end:
                raise AbError(f"{self._switch} did not take effect: the server makes no steps")
            self._wait(0.05)

    def _back(self, logs: Logs) -> dict[str, int]:
        """Switch on; leader → the step at which it took effect."""
        if self._switch == NULL:
            return self._now(logs)
        assert self._own is not None
        reply = self._session.command(None, "toggle.back", {"switch": self._switch, "mine": True})
        if not reply.get("ok"):
            raise AbError(str(reply.get("error")), busy=False)
        if not all(r.get("back") for r in reply["result"].values()):
            why = self._own.look(self._session.switches.list()).why
            raise AbError(f"{self._switch} went back on in the middle: {why or 'it is not known why'}", busy=False)
        end = time.monotonic() + PENDING_S
        while not self._is_back():
            if time.monotonic() > end:
                raise AbError(f"{self._switch} did not come back within {PENDING_S:.0f} s")
            self._wait(0.05)
        return self._steps()

    def _is_back(self) -> bool:
        assert self._own is not None
        seen = self._own.look(self._session.switches.list())
        if seen.other:
            raise AbError(f"{self._switch} was turned off by {seen.other} in the middle", busy=False)
        return seen.on

    def _steps(self) -> dict[str, int]:
        """Leader → N of the word in force."""
        return {name: int(state["word"][2]) for name, state in self._session.switches.list().items()}

    def _leave(self) -> str:
        """Take back what was flipped here, and only that; in words, how the switch is left."""
        if not self._asked:
            return "nothing was changed"
        goes = f"{self._switch} goes back on as sgtop leaves"
        reply = self._session.command(None, "toggle.back", {"switch": self._switch, "mine": True})
        if not reply.get("ok"):
            return goes
        if self._own is None:
            taken = any(r.get("back") for r in reply["result"].values())
            return f"{self._switch} goes back on" if taken else "nothing was changed"
        end = time.monotonic() + BACK_S
        try:
            while time.monotonic() < end:
                seen = self._own.look(self._session.switches.list())
                if seen.other:
                    return f"{self._switch} stays off, by {seen.other}"
                if seen.on:
                    return f"{self._switch} is on again"
                time.sleep(0.05)  # also after a signal: it takes no more than a step
        except SwitchError:
            pass  # the server has gone, or will do it by itself
        return goes
