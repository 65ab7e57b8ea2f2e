"""What a session knows beside the agents' frames, as frames: server, attachment, processes, GPUs, slots, log, ticks.

The session sets these on the model; :class:`StateFrames` finds what changed since the last tick and makes a frame for
each part, whole, so that the latest of each is all that a reader who starts in the middle needs. The ``tick`` comes
last: at it the live model advanced, the findings looked and a snapshot was made, and :func:`apply` plus the same calls
do so again in a replay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from sgtop_agent.wire import Frame, WireError

from sgtop_core.model.model import Model, Slot
from sgtop_core.model.snapshot import Attach, Gpu, Process, Server

from .envelope import build, plain

SOURCE = "session"
"""Source of these frames."""

_PARTS: dict[str, tuple[str, type[Any]]] = {
    "server": ("one", Server),
    "attach": ("one", Attach),
    "processes": ("all", Process),
    "gpus": ("all", Gpu),
    "client_cpu": ("value", float),
}
"""Attribute of the model → one dataclass, a tuple of them, or a plain value."""
_EVENTS = frozenset({"state", "heard"})
"""Fields of a slot that come from the agent's frames, not from outside."""


class StateFrames:
    """Makes the frames of one session."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}
        self._log: tuple[str, ...] = ()

    def frames(self, model: Model, unix: float) -> Iterator[Frame]:
        """What changed, then the tick. Call it right after a snapshot was made, at the snapshot's times."""
        for name in _PARTS:
            value = getattr(model, name)
            if name not in self._sent or self._sent[name] != value:
                self._sent[name] = value
                yield {"k": "set", "what": name, "x": plain(value), "sticky": name}
        labels = list(model.slots)
        if self._sent.get("slots") != labels:
            self._sent["slots"] = labels
            yield {"k": "slots", "labels": labels, "sticky": "slots"}
        for label, slot in model.slots.items():
            for field, value in _outside(slot).items():
                key = f"slot {label} {field}"
                if key not in self._sent or self._sent[key] != value:
                    self._sent[key] = value
                    yield {"k": "slot", "label": label, "x": plain({field: value}), "sticky": key}
        lines = _new(self._log, model.log)
        self._log = model.log
        if lines:
            yield {"k": "log", "lines": list(lines)}
        yield {"k": "tick", "unix": unix}


def _outside(slot: Slot) -> dict[str, Any]:
    fields = {f.name: getattr(slot, f.name) for f in dataclasses.fields(slot) if f.name not in _EVENTS}
    fields = {k: dict(v) if isinstance(v, dict) else v for k, v in fields.items()}
    return {**fields, "has_agent": slot.state is not None}


def _new(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """Lines of ``now`` after those of ``before``, of which the oldest may have been dropped."""
    if before == now:
        return ()
    for skip in range(len(before) + 1):
        rest = before[skip:]
        if now[: len(rest)] == rest:
            return now[len(rest) :]
    return now


def apply(model: Model, frame: Mapping[str, Any], log_lines: int) -> None:
    """Set on ``model`` what a frame of :class:`StateFrames` says (all but ``tick``).

    Raises:
        WireError: a frame that does not fit.
    """
    try:
        _apply(model, frame, log_lines)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise WireError(f"a frame of the session that cannot be read: {e}") from e


def _apply(model: Model, f: Mapping[str, Any], log_lines: int) -> None:
    kind = f.get("k")
    if kind == "set":
        part = _PARTS.get(str(f["what"]))
        if part is None:
            return  # of a newer sgtop
        how, cls = part
        x = f["x"]
        value = x if how == "value" else tuple(build(i, cls) for i in x) if how == "all" else build(x, cls)
        setattr(model, str(f["what"]), value)
    elif kind == "slots":
        slots = {str(label): model.slots.get(str(label)) or Slot(None) for label in f["labels"]}
        model.slots.clear()
        model.slots.update(slots)
    elif kind == "slot":
        slot = model.slots.setdefault(str(f["label"]), Slot(None))
        fields = {str(k): v for k, v in f["x"]}
        if not fields.pop("has_agent", True):
            slot.state = None
        made = build({"pid": None, **fields}, Slot)
        for name in fields:
            if name not in _EVENTS and hasattr(made, name):
                setattr(slot, name, getattr(made, name))
    elif kind == "log":
        model.log = (*model.log, *(str(x) for x in f["lines"]))[-log_lines:]
