"""Where the scheduler may run and with what priority: changed for all its threads, and undone when the owner goes.

Threads that are made later inherit from the thread that makes them; undoing covers them with the main thread's values
from before.
"""

from __future__ import annotations

import logging
import os
import resource
from typing import TYPE_CHECKING, Any

from ..ops import Call, OpError

if TYPE_CHECKING:
    from ..clients import Client
    from ..serve import Agent

CAP_SYS_NICE = 23
logger = logging.getLogger("sgtop")


def _threads() -> list[int]:
    return [int(tid) for tid in os.listdir("/proc/self/task")]


def _capable() -> bool:
    try:
        with open("/proc/self/status") as f:
            line = next(x for x in f if x.startswith("CapEff:"))
        return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    except (OSError, StopIteration, ValueError):
        return False


def lowest_nice() -> int:
    """The lowest nice value that this process may set."""
    return -20 if _capable() else 20 - max(1, resource.getrlimit(resource.RLIMIT_NICE)[0])


class Actions:
    """Pin and priority of one scheduler process. Agent's thread."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._cpus: dict[int, set[int]] | None = None
        self._nice: dict[int, int] | None = None
        self._owner: dict[str, tuple[int, str]] = {}

    def register(self) -> None:
        """Operations, and the way back."""
        agent = self._agent
        agent.ops.register("action.pin", self._op_pin)
        agent.ops.register("action.priority", self._op_priority)
        agent.ops.register("action.undo", self._op_undo)
        agent.on_client_gone(self.gone)
        agent.on_undo(lambda: self.undo("sgtop has left"))

    def _audit(self, text: str) -> None:
        try:
            logger.warning("sgtop: %s", text)
        except Exception:
            pass  # what was done counts, not the line
        self._agent.note("info", text)

    def _take(self, call: Call, what: str) -> str:
        who = call.who
        other = self._owner.get(what)
        if other is not None and other[0] != id(call.client):
            raise OpError(f"the {what} was changed by {other[1]}")
        return who

    def _op_pin(self, call: Call) -> dict[str, Any]:
        cpus = call.args.get("cpus")
        if not isinstance(cpus, list) or not cpus or not all(isinstance(c, int) and 0 <= c < 4096 for c in cpus):
            raise OpError("cpus is a list of CPU numbers")
        who = self._take(call, "pinning")
        before = {}
        try:
            for tid in _threads():
                before[tid] = os.sched_getaffinity(tid)
                os.sched_setaffinity(tid, cpus)
        except ProcessLookupError:
            pass  # a thread has ended meanwhile
        except OSError as error:
            _restore_cpus(before)
            raise OpError(f"cannot pin to CPUs {_ranges(cpus)}: {error.strerror}; the process may use {_allowed()}")
        self._cpus = self._cpus or before
        self._owner["pinning"] = id(call.client), who
        now = sorted(os.sched_getaffinity(0))  # the kernel leaves out what the process may not use
        self._audit(f"scheduler pinned to CPUs {_ranges(now)} (pid {os.getpid()}), asked by {who}")
        return {"cpus": now, "before": sorted(self._cpus.get(os.getpid(), set()))}

    def _op_priority(self, call: Call) -> dict[str, Any]:
        nice = call.args.get("nice")
        if not isinstance(nice, int) or isinstance(nice, bool) or not -20 <= nice <= 19:
            raise OpError("nice is a number from -20 (first) to 19 (last)")
        who = self._take(call, "priority")
        before = {tid: os.getpriority(os.PRIO_PROCESS, tid) for tid in _threads()}
        lowest = lowest_nice()
        if nice < lowest:
            raise OpError(
                f"nice {nice} needs CAP_SYS_NICE in the server's process, or ulimit -e; its lowest is {lowest}"
            )
        if min(before.values()) < lowest:
            raise OpError("refused: there would be no way back, as the server's process may not lower its nice value")
        try:
            for tid in before:
                os.setpriority(os.PRIO_PROCESS, tid, nice)
        except ProcessLookupError:
            pass  # a thread has ended meanwhile
        except OSError as error:
            _restore_nice(before)
            raise OpError(f"cannot set nice {nice}: {error.strerror}")
        self._nice = self._nice or before
        self._owner["priority"] = id(call.client), who
        self._audit(f"scheduler's nice set to {nice} (pid {os.getpid()}), asked by {who}")
        return {"nice": nice, "before": self._nice.get(os.getpid(), 0)}

    def _op_undo(self, call: Call) -> dict[str, Any]:
        mine = [what for what, (owner, _) in self._owner.items() if owner == id(call.client)]
        for what in mine:
            self._undo_one(what, "asked back")
        return {"undone": mine}

    def gone(self, client: Client) -> None:
        """A client has left: what it changed goes back."""
        for what, (owner, who) in list(self._owner.items()):
            if owner == id(client):
                self._undo_one(what, f"{who} has gone")

    def undo(self, why: str) -> None:
        """Everything back."""
        for what in list(self._owner):
            self._undo_one(what, why)

    def _undo_one(self, what: str, why: str) -> None:
        self._owner.pop(what, None)
        if what == "pinning" and self._cpus is not None:
            before, self._cpus = self._cpus, None
            _restore_cpus(before)
        elif what == "priority" and self._nice is not None:
            nices, self._nice = self._nice, None
            _restore_nice(nices)
        self._audit(f"{what} of the scheduler back to what it was (pid {os.getpid()}): {why}")


def _restore_cpus(before: dict[int, set[int]]) -> None:
    main = before.get(os.getpid())
    for tid in _threads():
        cpus = before.get(tid, main)
        if cpus:
            try:
                os.sched_setaffinity(tid, cpus)
            except OSError:
                continue  # it has ended


def _restore_nice(before: dict[int, int]) -> None:
    main = before.get(os.getpid(), 0)
    for tid in _threads():
        try:
            os.setpriority(os.PRIO_PROCESS, tid, before.get(tid, main))
        except OSError:
            continue  # it has ended


def _allowed() -> str:
    return _ranges(sorted(os.sched_getaffinity(0)))


def _ranges(cpus: list[int]) -> str:
    out: list[str] = []
    start = last = None
    for cpu in [*sorted(set(cpus)), None]:
        if last is not None and cpu == last + 1:
            last = cpu
            continue
        if start is not None:
            out.append(str(start) if start == last else f"{start}-{last}")
        start = last = cpu
    return ",".join(out)
