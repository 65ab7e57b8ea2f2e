"""A flip that this session asked for: what is known of it from the groups' own accounts, whoever flips meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sgtop_agent.wire import WHO_LENGTH

from sgtop_core.switches.control import NAMES, who


@dataclass(frozen=True, slots=True)
class Seen:
    """One look."""

    off: bool
    """On all ranks, now."""
    mine: bool
    """Whether any group still wants it off for this session."""
    on: bool
    """On all ranks, now, and nobody wants it otherwise."""
    other: str
    """Who else has it off."""
    left_s: float | None
    why: str
    """Why it went back, where it has."""
    made: int
    """Steps that the slowest group has made since it was asked."""


class OwnFlip:
    """``asked``: what the command ``toggle`` returned. ``steps`` is filled by looks, and stays."""

    def __init__(self, switch: str, asked: Mapping[str, Mapping[str, Any]]) -> None:
        self.switch = switch
        self.steps: dict[str, int] = {}
        """Group → first step that ran with it off. A flip that was short is seen here too: agents keep a log."""
        self._asked = {name: int(reply["ct"]) for name, reply in asked.items()}
        self._bit = 1 << NAMES.index(switch)
        self._me = who()[:WHO_LENGTH]

    @property
    def took_effect(self) -> bool:
        """Whether it has been off, in every group."""
        return set(self.steps) == set(self._asked)

    def look(self, groups: Mapping[str, Mapping[str, Any]]) -> Seen:
        """``groups``: what ``toggle.list`` returned."""
        rows = {name: next(s for s in g["switches"] if s["name"] == self.switch) for name, g in groups.items()}
        for name, asked in self._asked.items():
            group = groups.get(name, {})
            # A flip takes effect some steps after it is asked for: what is older in the log was another one.
            off = [ct for ct, state, _ in group.get("log", ()) if ct > asked and state & self._bit]
            if off and name not in self.steps:
                self.steps[name] = int(off[0]) + 1
        flips = [s for s in rows.values() if s["wanted"] == "off"]
        mine = [s for s in flips if s["owner"] == self._me]
        lefts = [s["left_s"] for s in mine if s["left_s"] is not None]
        return Seen(
            off=all(s["state"] == "off" for s in rows.values()),
            mine=bool(mine),
            on=all(s["state"] == "on" for s in rows.values()),
            other=next((str(s["owner"]) for s in flips if s["owner"] != self._me), ""),
            left_s=min(lefts) if lefts else None,
            why=next((str(s["why"]) for s in rows.values() if s.get("why")), ""),
            made=min((int(groups[n]["ct"]) - ct for n, ct in self._asked.items() if n in groups), default=0),
        )
