"""Kernel tracing in a session: a tracker a rank, what to ask the agents, and the views into the model's slots."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sgtop_agent.wire import Frame, WireError

from sgtop_core.kernels.categories import Categories, TableError, load
from sgtop_core.kernels.layout import LayoutError
from sgtop_core.kernels.ring import RingError
from sgtop_core.kernels.tracker import KernelTracker
from sgtop_core.model.arrays import I64
from sgtop_core.model.events import batch
from sgtop_core.model.model import Model
from sgtop_core.recording.quantise import quantise

MODES = ("off", "windows", "on")
OPS = frozenset({"kernels", "kernel_names"})
RETRY_NS = 15_000_000_000
"""A rank that cannot be traced is asked again after this long: its reason may have gone."""


@dataclass(slots=True)
class _Rank:
    tracker: KernelTracker
    asked: dict[str, Any] | None = None
    """Arguments of the last ``kernels`` command."""
    ring: bool = False
    again_at: int = 0
    names: deque[list[int]] = field(default_factory=deque)
    """Addresses under way, one list a command."""


def user_table(environ: Mapping[str, str]) -> Path:
    """Where a user's own table of kernel categories would be: ``sgtop/kernels.toml`` in the configuration folder."""
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
    return Path(folder) / "sgtop" / "kernels.toml"


class KernelFeed:
    """Owned by the session's thread. ``want`` is called there too, from what screens ask for."""

    def __init__(
        self,
        model: Model,
        mode: str,
        categories: Categories | None = None,
        window_s: float = 1.0,
        period_s: float = 10.0,
    ) -> None:
        """``mode``: what every rank that answers is asked for."""
        self.mode = mode
        self._model = model
        self.said: list[str] = []
        """Lines for the log."""
        self._categories = categories if categories is not None else self._own_categories()
        self._told: dict[str, str] = {}
        self._ranks: dict[str, _Rank] = {}
        self.on_block: Callable[[str, Mapping[str, I64]], None] | None = None
        """(rank, columns): sees every record that is counted, for recordings."""
        self._args: dict[str, Any] = {"window_s": window_s, "period_s": period_s}

    def _own_categories(self) -> Categories:
        path = user_table(os.environ)
        try:
            if not path.exists():
                return Categories()
            return Categories(load(path))
        except (TableError, OSError) as e:  # HOME may be another user's (`docker run --user`, `setpriv`)
            self.said.append(f"kernel categories: {e}; sgtop's own are used")
            return Categories()

    def hello(self, label: str, hello: Mapping[str, Any]) -> None:
        """A rank's agent has answered: it starts anew."""
        self.lost(label)
        modes = hello.get("modes")
        known = {n: str(m) for m, n in modes.items() if isinstance(n, int)} if isinstance(modes, Mapping) else {}
        rank = self._ranks[label] = _Rank(KernelTracker(known, self._categories))
        if self.on_block is not None:
            rank.tracker.on_block = partial(self.on_block, label)

    def lost(self, label: str) -> None:
        """The connection to a rank has gone."""
        rank = self._ranks.pop(label, None)
        if rank is not None:
            rank.tracker.close()

    def frame(self, label: str, frame: Frame) -> None:
        """Take ``kernels`` frames and the ``forward`` table.

        Raises:
            WireError: the frame is malformed.
        """
        rank = self._ranks.get(label)
        if rank is None or rank.asked is None:
            return
        if frame["k"] == "kernels":
            try:
                rank.tracker.on_state(frame)
            except (KeyError, TypeError, ValueError, IndexError) as e:
                raise WireError(f"a kernels frame that cannot be read: {e}")
        elif frame["k"] == "ev" and frame.get("e") == "forward":
            rank.tracker.on_forwards(batch(quantise(frame)).columns)

    def asked_by_user(self, label: str, args: Mapping[str, Any]) -> None:
        """A ``kernels`` command of a screen goes out; from now on it is what this rank is asked for."""
        rank = self._ranks.get(label)
        if rank is not None and args.get("mode") in MODES:
            self.mode = str(args["mode"])
            self._args.update({k: v for k, v in args.items() if k in ("window_s", "period_s")})
            rank.asked = {"mode": self.mode, **self._args}

    def reply(self, label: str, op: str, reply: Mapping[str, Any], fds: deque[int]) -> None:
        """The answer to ``kernels`` or ``kernel_names``. ``fds``: descriptors that came on this connection."""
        rank = self._ranks.get(label)
        result = reply.get("result")
        result = result if isinstance(result, Mapping) else {}
        if op == "kernel_names":
            asked = rank.names.popleft() if rank is not None and rank.names else []
            names = result.get("names")
            if rank is not None and isinstance(names, Mapping):
                rank.tracker.names.answer(names)
            elif rank is not None and asked:
                rank.tracker.names.ask_again(asked)
            return
        fd = fds.popleft() if result.get("ring") and fds else None
        try:
            if rank is None:
                return
            rank.tracker.on_problem("" if reply.get("ok") else str(reply.get("error", "")))
            if reply.get("ok"):
                rank.tracker.on_state(result)
                if fd is not None:
                    rank.tracker.on_ring(fd)
                    rank.ring = True
        except (RingError, LayoutError) as e:
            rank = self._ranks[label]
            rank.tracker.on_problem(str(e))
        finally:
            if fd is not None:
                os.close(fd)

    def turn(self, now: int, window_s: float) -> list[tuple[str, str, dict[str, Any]]]:
        """Read the rings, update the slots. Returns commands to send: (rank, operation, arguments)."""
        out: list[tuple[str, str, dict[str, Any]]] = []
        for label, rank in self._ranks.items():
            want = {"mode": self.mode, **self._args}
            changed = rank.asked != want and (self.mode != "off" or rank.asked is not None)
            if changed or (self.mode != "off" and not rank.ring and now >= rank.again_at):
                rank.asked, rank.again_at = want, now + RETRY_NS
                out.append((label, "kernels", dict(want)))
            if rank.asked is None:
                continue
            slot = self._model.slots.get(label)
            rank.tracker.why = slot.state.sources if slot is not None and slot.state is not None else None
            rank.tracker.poll(now)
            wanted = rank.tracker.names_wanted()
            if wanted:
                rank.names.append(wanted)
                out.append((label, "kernel_names", {"pointers": wanted}))
            if slot is not None:
                slot.kernels = view = rank.tracker.view(now, window_s)
                if view.reason and self._told.get(label) != view.reason and view.state in ("failed", "unavailable"):
                    self.said.append(f"{label}: no kernel tracing: {view.reason}")
                    self._told[label] = view.reason
        return out

    def close(self) -> None:
        """Unmap every ring."""
        for label in list(self._ranks):
            self.lost(label)
