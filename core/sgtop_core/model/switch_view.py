"""Switches as a snapshot shows them."""

from __future__ import annotations

from dataclasses import dataclass

from sgtop_core.model.figures import Figures


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch. ``state``: on, off, pending; ``on`` is what the server was started with."""

    name: str
    state: str
    wanted: str
    available: bool
    reason: str
    """In words: why it is not available."""
    step: int | None
    """forward_ct of the first step that runs without it."""
    owner: str
    left_s: float | None
    """Seconds until it goes back by itself; None: kept until its owner leaves, or not off."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A change that is in force on every rank, with the steps on either side of it."""

    switch: str
    to: str
    step: int
    mono_ns: int
    before: Figures
    after: Figures
    """So far, up to some seconds."""


@dataclass(frozen=True, slots=True)
class SwitchGroup:
    """Ranks that change together."""

    name: str
    """The rank that leads."""
    ranks: tuple[str, ...]
    settled: bool
    waits: str
    switches: tuple[Switch, ...]
    flips: tuple[Flip, ...] = ()
    """The latest, newest last."""
