"""A session that flips switches of a real server, and what every rank says of when it did."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from sgtop_agent import wire
from sgtop_core.session import Session, SessionOptions

from tests.server.servers import steps_in_log
from tools.sglang_cpu.server import CpuServer

RADIX = "radix-cache"
LEAKS = ("memory leak detected", "pool leak", "Traceback")
"""What SGLang's checks of an idle server write when KV slots are missing, and what a crash writes."""


class Switching:
    """Attached to every rank. ``changes``: rank → its own [forward_ct, state] of every change, in order."""

    def __init__(self, server: CpuServer, **options: Any) -> None:
        """Attach.

        Raises:
            TimeoutError: not live on every rank within half a minute.
        """
        self.server = server
        self.session = Session(f":{server.port}", SessionOptions(**options))
        self._log: dict[str, dict[int, tuple[int, int]]] = {}
        self.session.taps.append(self._tap)
        self.session.start()
        self.until(lambda: (r := self.session.snapshot().ranks) and all(x.state == "live" for x in r), 40)

    def _tap(self, label: str, frame: wire.Frame, now: int) -> None:
        if frame["k"] == "switch":
            self._log.setdefault(label, {}).update({ns: (ct, state) for ct, state, ns in frame["log"]})

    def until(self, what: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        """Wait until ``what`` gives something true; that."""
        end = time.monotonic() + timeout_s
        while not (got := what()):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {timeout_s:g} s: {self.states()}; {self.session.snapshot().log[-6:]}")
            time.sleep(0.02)
        return got

    def states(self) -> Any:
        """What every group says."""
        return self.session.command(None, "toggle.list", {})

    def state(self, switch: str = RADIX) -> dict[str, Any]:
        """A switch of the only group."""
        (group,) = self.states()["result"].values()
        found: dict[str, Any] = next(s for s in group["switches"] if s["name"] == switch)
        return found

    def ask(self, op: str, **args: Any) -> Any:
        """A command's result; it must be granted."""
        reply = self.session.command(None, op, args)
        assert reply["ok"], reply
        return reply["result"]

    def off(self, for_s: float = 60.0, *, wait: bool = True) -> None:
        """Radix cache off."""
        self.ask("toggle", switch=RADIX, on=False, for_s=for_s)
        if wait:
            self.until(lambda: self.session.switches.wait(RADIX, False, 0.0))

    def on(self, *, wait: bool = True) -> None:
        """Radix cache on."""
        self.ask("toggle.back", switch=RADIX)
        if wait:
            self.until(lambda: self.session.switches.wait(RADIX, True, 0.0))

    def changes(self) -> dict[str, list[tuple[int, int]]]:
        """Rank → its changes so far, from its own log; asked for now, besides what its frames said."""
        for label in self.session.hellos():
            reply, _ = self.session.ask(label, "switch.list", {})
            self._log.setdefault(label, {}).update({ns: (ct, s) for ct, s, ns in reply["result"]["log"]})
        return {label: [row for _, row in sorted(log.items())] for label, log in sorted(self._log.items())}

    def times(self) -> dict[str, list[int]]:
        """Rank → CLOCK_MONOTONIC ns of its changes."""
        self.changes()
        return {label: sorted(log) for label, log in self._log.items()}

    def close(self) -> None:
        """Detach."""
        self.session.stop()

    def __enter__(self) -> Switching:
        """Attached."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.close()


def same_steps(changes: dict[str, list[tuple[int, int]]], ranks: int) -> list[tuple[int, int]]:
    """Every rank's changes, which must be the same."""
    assert len(changes) == ranks
    assert len({json.dumps(rows) for rows in changes.values()}) == 1, changes
    return next(iter(changes.values()))


def windows(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """[first, end) of the steps with the radix cache off."""
    out = []
    for (first, state), (end, after) in zip(changes[::2], changes[1::2], strict=True):
        assert (state, after) == (4, 0)
        out.append((first, end))
    return out


def cached_while_off(server: CpuServer, off: list[tuple[int, int]]) -> list[int]:
    """From SGLang's own log: cached tokens of every prefill in steps with the radix cache off.

    The switch is in force from the boundary at ``forward_ct`` = N, whose batch is step N + 1.
    """
    steps = [s for s in steps_in_log(server) if s.kind == "Prefill"]
    return [s.cached for s in steps if any(first < s.ct <= end for first, end in off)]


def leaks(server: CpuServer) -> list[str]:
    """Lines of the server's log that must not be there."""
    text = server.log.read_text(errors="replace").splitlines()
    return [line[:300] for line in text if any(word in line for word in LEAKS)]
