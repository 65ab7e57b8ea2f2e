"""Frames of the switches into what a snapshot shows, and each flip's steps before and after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sgtop_agent.wire import Frame, WireError

from sgtop_core.model.figures import NOTHING, Figures, StepLog
from sgtop_core.model.switch_view import Flip, Switch, SwitchGroup

NAMES = ("cuda-graph-decode", "cuda-graph-prefill", "radix-cache")
"""By the bit of a state."""
SIDE_NS = 5_000_000_000
"""Steps this long before a flip, and after it, are compared."""
KEEP_NS = SIDE_NS + 3_000_000_000
"""Frames of steps that are kept to look back; a flip is known some steps after it took effect."""
SKIP = 3
"""First steps of a side that are left out."""
MOST_FLIPS = 8
_TABLES = ("step", "forward", "result")


@dataclass(slots=True)
class _Flip:
    switch: str
    to: str
    step: int
    at: int
    log: StepLog
    before: Figures
    after: Figures = NOTHING
    done: bool = False


@dataclass(slots=True)
class _Rank:
    modes: Mapping[str, int]
    tp: int
    replica: tuple[Any, Any]
    frames: deque[tuple[int, Frame]] = field(default_factory=deque)
    told: Frame | None = None
    settled: int = 0
    """the last state that was in force on every rank"""
    flips: deque[_Flip] = field(default_factory=lambda: deque(maxlen=MOST_FLIPS))


class SwitchModel:
    """Of all ranks. Only ranks that lead a group keep anything but their place."""

    def __init__(self) -> None:
        self._ranks: dict[str, _Rank] = {}

    def hello(self, label: str, hello: Mapping[str, Any]) -> None:
        """An agent has answered: the rank starts anew."""
        modes, rank = hello.get("modes"), hello.get("rank")
        place = rank if isinstance(rank, Mapping) else {}
        tp = place.get("tp")
        self._ranks[label] = _Rank(
            {str(k): v for k, v in modes.items() if isinstance(v, int)} if isinstance(modes, Mapping) else {},
            tp if isinstance(tp, int) else 0,
            (place.get("dp"), place.get("pp")),
        )

    def frame(self, label: str, frame: Frame, now: int) -> bool:
        """Take a frame; whether it was one that nobody else wants.

        Raises:
            WireError: a ``switch`` frame that cannot be read.
        """
        rank = self._ranks.get(label)
        kind = frame.get("k")
        if rank is None or rank.tp != 0:
            return kind == "switch"
        if kind == "switch":
            try:
                self._state(rank, frame)
            except (KeyError, TypeError, ValueError, IndexError) as e:
                raise WireError(f"a switch frame that cannot be read: {e}") from None
            return True
        if kind == "ev" and frame.get("e") in _TABLES:
            rank.frames.append((now, frame))
            while now - rank.frames[0][0] > KEEP_NS:
                rank.frames.popleft()
            for flip in rank.flips:
                if not flip.done:
                    flip.log.frame(frame)
                    self._measure(flip)
        return False

    @staticmethod
    def _measure(flip: _Flip) -> None:
        began = flip.log.began(flip.step + SKIP)
        if began is None:
            return
        flip.after = flip.log.stretch(flip.step + SKIP, since=began, until=began + SIDE_NS)
        flip.done = flip.after.seconds * 1e9 >= 0.95 * SIDE_NS

    def _state(self, rank: _Rank, frame: Frame) -> None:
        _view(frame, 0)  # it can be read, or is not kept
        rank.told = frame
        after, _, n = (int(v) for v in frame["word"])
        if not frame["settled"] or after == rank.settled:
            return
        changed, rank.settled = after ^ rank.settled, after
        for flip in rank.flips:
            flip.done = True  # what comes now belongs to the next one
        last = max((flip.step + SKIP for flip in rank.flips), default=0)
        for bit, name in enumerate(NAMES):
            if changed >> bit & 1:
                log = StepLog(rank.modes)
                for _, kept in rank.frames:
                    log.frame(kept)
                first = n + 1  # the boundary at forward_ct = N is that of step N + 1
                began = log.began(first) or int(frame["t"])
                before = log.stretch(last, first, since=began - SIDE_NS)
                rank.flips.append(_Flip(name, "off" if after >> bit & 1 else "on", first, began, log, before))
                self._measure(rank.flips[-1])

    def groups(self, labels: Iterable[str], now: int) -> tuple[SwitchGroup, ...]:
        """Of the ranks ``labels``; ``now`` CLOCK_MONOTONIC ns."""
        here = [label for label in labels if label in self._ranks]
        out = []
        for label in here:
            rank = self._ranks[label]
            if rank.told is None:
                continue
            others = sorted((self._ranks[x].tp, x) for x in here if self._ranks[x].replica == rank.replica)
            flips = tuple(Flip(f.switch, f.to, f.step, f.at, f.before, f.after) for f in rank.flips)
            out.append(
                SwitchGroup(
                    name=label,
                    ranks=tuple(x for _, x in others),
                    settled=bool(rank.told["settled"]),
                    waits=str(rank.told.get("waits", "")),
                    switches=_view(rank.told, now),
                    flips=flips,
                )
            )
        return tuple(out)


def _view(frame: Frame, now: int) -> tuple[Switch, ...]:
    age = max(0.0, (now - int(frame["t"])) / 1e9) if now else 0.0
    return tuple(
        Switch(
            name=str(s["name"]),
            state=str(s["state"]),
            wanted=str(s["wanted"]),
            available=bool(s["available"]),
            reason=str(s["reason"]),
            step=None if s["step"] is None else int(s["step"]),
            owner=str(s["owner"]),
            left_s=None if s["left_s"] is None else max(0.0, float(s["left_s"]) - age),
        )
        for s in frame["switches"]
    )
