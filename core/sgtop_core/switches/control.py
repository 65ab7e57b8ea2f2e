"""Asking a server's ranks to change a switch: which ranks go together, in what order they are asked, what comes back.

Everything that keeps a group in step is the agents' (``sgtop_agent.switches``). If this process dies between any two of
its messages, the agents undo what was begun.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from sgtop_agent import wire
from sgtop_probes.http import HttpError

from sgtop_core.live.backend import Http

OPS = frozenset({"toggle", "toggle.plan", "toggle.keep", "toggle.back", "toggle.list", "action"})
"""Commands of a session that this module answers."""
NAMES = ("cuda-graph-decode", "cuda-graph-prefill", "radix-cache")
ACTIONS = ("flush-cache", "freeze-gc", "pin", "priority", "undo")
DEFAULT_S = 60.0
READY_S = 3.0
_CHANGES = frozenset({"toggle", "toggle.keep", "toggle.back", "action"})

Reply = Mapping[str, Any]


class Asker(Protocol):
    """What is needed of a session."""

    @property
    def readonly(self) -> bool:
        """Whether all changes are refused."""

    def ask(self, rank: str, op: str, args: Mapping[str, Any], fds: Sequence[int] = ()) -> tuple[Reply, list[int]]:
        """One command to one agent."""

    def hellos(self) -> dict[str, wire.Frame | None]:
        """Every rank's hello, None without an agent."""

    def http(self) -> Http | None:
        """The server's HTTP interface."""


class SwitchError(Exception):
    """What was not done, in words for the user; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that change together: the tensor-parallel ranks of one replica. The first leads."""

    name: str
    labels: tuple[str, ...]


def who() -> str:
    """For the audit: this process in words."""
    return f"pid {os.getpid()} (uid {os.getuid()}) on {socket.gethostname()}"


class Switches:
    """Commands about switches; any thread, may wait some seconds."""

    def __init__(self, session: Asker, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock

    # --- groups -----------------------------------------------------------------------------------------

    def groups(self) -> list[Group]:
        """All groups of the server.

        Raises:
            SwitchError: a rank without an agent, or a group that is not whole on this host.
        """
        hellos = self._session.hellos()
        if not hellos:
            raise SwitchError("the server has no ranks yet")
        missing = [label for label, hello in hellos.items() if hello is None]
        if missing:
            raise SwitchError(f"no agent in {', '.join(missing)}: a group is switched as a whole or not at all")
        found: dict[tuple[int, int], dict[int, str]] = {}
        sizes: dict[tuple[int, int], int] = {}
        for label, hello in hellos.items():
            rank = hello.get("rank") if hello is not None else None
            sizes_of = rank if isinstance(rank, Mapping) else {}
            key = (_int(sizes_of.get("dp")), _int(sizes_of.get("pp")))
            found.setdefault(key, {})[_int(sizes_of.get("tp"))] = label
            sizes[key] = max(_int(sizes_of.get("tp_size")), 1)
        out = []
        for key, labels in sorted(found.items()):
            lost = [i for i in range(sizes[key]) if i not in labels]
            if lost:
                raise SwitchError(f"rank TP{lost[0]} of the group of {labels[min(labels)]} is not on this host")
            out.append(Group(labels[0], tuple(labels[i] for i in range(sizes[key]))))
        return out

    # --- commands ---------------------------------------------------------------------------------------

    def command(self, op: str, args: Mapping[str, Any]) -> Reply:
        """Answer one of ``OPS`` as a session answers a command."""
        try:
            if self._session.readonly and op in _CHANGES:
                raise SwitchError(f"refused: sgtop runs with --readonly, and {op} changes the server")
            if op == "toggle":
                result = self.toggle(str(args.get("switch")), args.get("on"), args.get("for_s", DEFAULT_S))
            elif op == "toggle.plan":
                result = self.plan(str(args.get("switch")), args.get("on"))
            elif op == "toggle.list":
                result = self.list()
            elif op == "action":
                result = self.action(str(args.get("action")), args)
            else:
                given = {"switch": args.get("switch"), "who": who(), "mine": bool(args.get("mine"))}
                result = self._each_leader(op.replace("toggle", "switch"), given)
        except SwitchError as e:
            return {"ok": False, "error": str(e)}
        return {"ok": True, "result": result}

    def list(self) -> dict[str, Any]:
        """Group → the agent's account of its switches; the leader's words, with a member's reason where it has one."""
        out = {}
        for group in self.groups():
            states = [self._ask(label, "switch.list", {}) for label in group.labels]
            out[group.name] = {**states[0], "switches": _joined(states)}
        return out

    def plan(self, switch: str, on: Any) -> dict[str, Any]:
        """What a flip would cost, a group: ``text``, ``refuse`` (why it must not be, or empty) and figures."""
        _known(switch, on)
        return {g.name: self._ask(g.labels[0], "switch.plan", {"switch": switch, "on": on}) for g in self.groups()}

    def toggle(self, switch: str, on: Any, for_s: Any = DEFAULT_S) -> dict[str, Any]:
        """Ask every group; returns at once with what is pending. What fails in one group is undone in the others."""
        _known(switch, on)
        groups = self.groups()
        if on:
            return self._each_leader("switch.back", {"switch": switch, "who": who()})
        for name, state in self.list().items():
            mine = next((s for s in state["switches"] if s["name"] == switch), None)
            if mine is None or not mine["available"]:
                raise SwitchError(f"{switch} cannot be switched on {name}: {(mine or {}).get('reason', 'unknown')}")
        done: list[Group] = []
        out = {}
        try:
            for group in groups:
                self.ready(group)
                out[group.name] = self._ask(
                    group.labels[0], "switch.flip", {"switch": switch, "on": False, "for_s": for_s, "who": who()}
                )
                done.append(group)
        except SwitchError:
            for group in done:
                with suppress(SwitchError):  # its timer and its owner's end undo it too
                    self._ask(group.labels[0], "switch.back", {"switch": switch, "who": who(), "mine": True})
            raise
        return out

    def ready(self, group: Group) -> None:
        """Give the group its page: made by the leader's agent, handed to every other rank's."""
        reply, fds = self._session.ask(group.labels[0], "switch.open", {})
        try:
            if not reply.get("ok"):
                raise SwitchError(str(reply.get("error")))
            epoch = reply["result"]["epoch"]
            if not fds:
                raise SwitchError(f"{group.labels[0]} sent no page")
            for label in group.labels[1:]:
                answer, extra = self._session.ask(label, "switch.join", {"epoch": epoch}, fds[:1])
                for fd in extra:
                    os.close(fd)
                if not answer.get("ok"):
                    raise SwitchError(f"{label}: {answer.get('error')}")
        finally:
            for fd in fds:
                os.close(fd)

    def wait(self, switch: str, on: bool, timeout_s: float) -> bool:
        """Wait until ``switch`` is in that state on every rank of every group; whether it came to be."""
        end = self._clock() + timeout_s
        want = "on" if on else "off"
        while True:
            states = self.list().values()
            mine = [next(s for s in state["switches"] if s["name"] == switch) for state in states]
            if all(s["state"] == want for s in mine):
                return True
            if not on and any(s["wanted"] == "on" for s in mine):
                return False  # it was called off
            if self._clock() >= end:
                return False
            time.sleep(0.05)

    # --- actions ----------------------------------------------------------------------------------------

    def action(self, action: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Flush the cache, freeze the heap, pin, set the priority, or undo the last two."""
        if action in ("flush-cache", "freeze-gc"):
            return {action: self._over_http(f"/{action.replace('-', '_')}")}
        if action == "pin":
            given = {"cpus": args.get("cpus"), "who": who()}
        elif action == "priority":
            given = {"nice": args.get("nice"), "who": who()}
        elif action == "undo":
            given = {}
        else:
            raise SwitchError(f"there is no action {action!r}; there are {', '.join(ACTIONS)}")
        hellos, rank = self._session.hellos(), args.get("rank")
        if rank and rank not in hellos:
            raise SwitchError(f"there is no rank {rank!r}; there are {', '.join(hellos)}")
        labels = [str(rank)] if rank else [k for k, h in hellos.items() if h is not None]
        if not labels:
            raise SwitchError("no rank has an agent")
        out: dict[str, Any] = {}
        try:
            for label in labels:
                out[label] = self._ask(label, f"action.{action}", given)
        except SwitchError:
            for label in out:
                with suppress(SwitchError):  # its owner's end undoes it too
                    self._ask(label, "action.undo", {})
            raise
        return out

    def _over_http(self, path: str) -> str:
        http = self._session.http()
        if http is None:
            raise SwitchError(f"the server serves no HTTP, and {path} goes over it")
        try:
            return http.get(path).decode(errors="replace").strip()[:200]
        except HttpError as e:
            why = ": it is only done while nothing runs or waits" if path == "/flush_cache" and e.status == 400 else ""
            raise SwitchError(f"{e}{why}") from None

    # --- asking -----------------------------------------------------------------------------------------

    def _ask(self, label: str, op: str, args: Mapping[str, Any]) -> dict[str, Any]:
        reply, fds = self._session.ask(label, op, args)
        for fd in fds:
            os.close(fd)
        if not reply.get("ok"):
            error = str(reply.get("error"))
            raise SwitchError(error if error.startswith(f"{label} ") else f"{label}: {error}")
        result = reply.get("result")
        return dict(result) if isinstance(result, Mapping) else {}

    def _each_leader(self, op: str, args: Mapping[str, Any]) -> dict[str, Any]:
        return {g.name: self._ask(g.labels[0], op, args) for g in self.groups()}


def _known(switch: str, on: Any) -> None:
    if switch not in NAMES:
        raise SwitchError(f"there is no switch {switch!r}; there are {', '.join(NAMES)}")
    if not isinstance(on, bool):
        raise SwitchError("a switch is on or off")


def _joined(states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The leader's switches; one that a member cannot change is not available."""
    out = []
    for i, mine in enumerate(states[0]["switches"]):
        reason = next((s["switches"][i]["reason"] for s in states if s["switches"][i]["reason"]), "")
        moving = any(s["switches"][i]["state"] == "pending" for s in states)
        state = "pending" if moving else mine["state"]
        out.append({**mine, "available": not reason, "reason": reason, "state": state})
    return out


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
