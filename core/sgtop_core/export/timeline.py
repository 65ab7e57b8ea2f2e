"""A recording as spans, counters and marks on named tracks: what every timeline export draws.

All times are CLOCK_MONOTONIC nanoseconds of the recorded host; all of a track's spans are columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

GPU, CPU, COUNTERS = "gpu", "cpu", "counters"
"""Areas of a timeline: GPU kernels and forward modes; CPU: stages and who ran; counters."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process of the trace: a rank, or the host."""

    label: str
    pid: int | None
    note: str = ""
    """Model, GPU and version, for a title."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals, by start. ``name`` indexes :attr:`Timeline.names`; ``args`` are shown on a click, by their names."""

    t0: I64
    t1: I64
    name: I64
    args: Mapping[str, I64] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.t0)


@dataclass(frozen=True, slots=True)
class Track:
    """One row. ``kind``: step, forward, stage, gc, gpu-forward, kernel, sched."""

    group: str
    kind: str
    title: str
    area: str
    spans: Spans


@dataclass(frozen=True, slots=True)
class Counter:
    """One curve; ``v`` holds NaN where the value is not known."""

    group: str
    name: str
    unit: str
    t: I64
    v: F64


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment worth finding: an alert, a note, a loss."""

    t: int
    group: str
    severity: str
    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that a timeline shows."""

    start_ns: int
    end_ns: int
    real_offset_ns: int | None
    """Unix time minus CLOCK_MONOTONIC, where a hello gave it."""
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...]
    marks: tuple[Mark, ...]
    title: str = ""

    @property
    def events(self) -> int:
        """Spans, counter values and marks."""
        return sum(len(t.spans) for t in self.tracks) + sum(len(c.t) for c in self.counters) + len(self.marks)


class Names:
    """Gives each name a number."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self._index.setdefault(name, len(self._index))

    def each(self, keys: Iterable[I64], name: Callable[..., str]) -> I64:
        """The number of ``name(*key)`` for each row of ``keys``; each distinct key is named once."""
        rows = np.stack(list(keys), axis=1) if keys else np.empty((0, 0), np.int64)
        distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
        numbers = np.array([self[name(*k)] for k in distinct.tolist()], dtype=np.int64)
        return numbers[inverse.reshape(-1)] if len(rows) else np.empty(0, np.int64)

    def all(self) -> tuple[str, ...]:
        """Every name, by its number."""
        return tuple(self._index)


def spans(t0: I64, t1: I64, name: I64, **args: I64) -> Spans:
    """Spans in the order of their starts; longer first where several start together, so that they nest."""
    order = np.lexsort((-t1, t0))
    return Spans(t0[order], t1[order], name[order], {k: v[order] for k, v in args.items() if bool((v != -1).any())})


def lanes(s: Spans) -> I64:
    """Lane of each span, so that in a lane two spans are apart or one holds the other."""
    n = len(s)
    out = np.zeros(n, dtype=np.int64)
    if n < 2 or bool((s.t0[1:] >= np.maximum.accumulate(s.t1)[:-1]).all()):
        return out
    open_ends: list[list[int]] = []
    for i, (a, b) in enumerate(zip(s.t0.tolist(), s.t1.tolist(), strict=True)):
        for lane, stack in enumerate(open_ends):
            while stack and stack[-1] <= a:
                stack.pop()
            if not stack or stack[-1] >= b:
                stack.append(b)
                out[i] = lane
                break
        else:
            out[i] = len(open_ends)
            open_ends.append([b])
    return out


def column(frame: Mapping[str, Any], name: str) -> I64:
    """A column of a frame; -1 throughout where the frame lacks it."""
    raw = frame["c"].get(name)
    n = int(frame["n"])
    if raw is None:
        return np.full(n, -1, dtype=np.int64)
    return np.frombuffer(raw, dtype="<i8").astype(np.int64, copy=False)
