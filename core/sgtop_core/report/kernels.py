"""Kernel tables of a whole recording, added up from the views that the screen showed.

A view covers the seconds of the display's window, or the latest tracing window where those saw no kernel; it does not
say which, and the next view shares most of them. So views are picked whose seconds do not overlap, those that together
hold the most launches: with tracing in windows the last view of each, with continuous tracing one every window. What no
picked view holds (a part of a second at a border) is in no sum: ``traced_s`` says what the sums cover.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sgtop_core.kernels.table import COARSE_S, FINE_S, KEEP_S
from sgtop_core.model.kernel_view import Kernel, KernelMode, KernelView
from sgtop_core.model.windows import WINDOWS

from .figures import REST, KernelCover, KernelFigures, KernelModeFigures

SECOND_NS = 1_000_000_000
_HORIZON_S = KEEP_S + 2 * COARSE_S
"""No view reaches back further."""


@dataclass(frozen=True, slots=True)
class _Picked:
    """A view, and the best choice of those before it."""

    launches: int
    """Of it and of all before it."""
    view: KernelView
    before: _Picked | None

    def views(self) -> list[KernelView]:
        out, at = [self.view], self.before
        while at is not None:
            out.append(at.view)
            at = at.before
        return out[::-1]


@dataclass(slots=True)
class KernelViews:
    """The views of one rank, in the order in which they were shown."""

    counted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Second → launches that the tracker counted in it: the single kernels of the recording, in the tracker's bins."""
    _best: dict[int, _Picked] = field(default_factory=dict)
    """Second → the best choice of views that end before it."""
    _last: KernelView | None = None
    _at: int = -1

    def block(self, frame: Mapping[str, Any]) -> None:
        """A frame of single kernels: what the tracker counted at once."""
        if frame["n"]:
            self.counted[int(np.frombuffer(frame["c"]["t1"], np.int64).max()) // SECOND_NS] += int(frame["n"])

    def see(self, view: KernelView, now: int) -> None:
        """The view that was shown at ``now`` ns."""
        second = now // SECOND_NS
        if view.newest_s is None or not view.modes or (view is self._last and second == self._at):
            return
        self._last, self._at = view, second
        begin = self._begin(view, second)
        if begin is None:
            return
        # A view is made anew as a second begins: what it calls traced ends there, also where the GPU was idle.
        end = max(int(view.newest_s), second)
        ends = [e for e in self._best if e <= begin]
        before = self._best[max(ends, key=lambda e: (self._best[e].launches, e))] if ends else None
        launches = _launches(view) + (before.launches if before is not None else 0)
        if end not in self._best or launches >= self._best[end].launches:
            self._best[end] = _Picked(launches, view, before)
        old = sorted((e for e in self._best if e < end - _HORIZON_S), key=lambda e: (self._best[e].launches, e))
        for e in old[:-1]:
            del self._best[e]
        for s in [s for s in self.counted if s < end - _HORIZON_S]:
            del self.counted[s]

    def _begin(self, view: KernelView, second: int) -> int | None:
        """The first second of which a view holds kernels; None where it holds more than the recording."""
        assert view.newest_s is not None
        newest = int(view.newest_s) - 1
        for window in WINDOWS:
            since = second - int(window.seconds)
            if newest < since + 1:
                since = newest - max(int(view.window_s), 1)
            elif window.seconds > FINE_S:
                since -= COARSE_S
            seconds = [s for s in self.counted if since <= s <= newest]
            if seconds and sum(self.counted[s] for s in seconds) >= _launches(view):
                return min(seconds)
        return None

    def sums(self) -> tuple[KernelCover, tuple[KernelFigures, ...]]:
        """Everything that can be added up without counting anything twice, as (what it covers, rows)."""
        best = max(self._best.values(), key=lambda p: p.launches, default=None)
        if best is not None:
            # Of equals the last: it has the names that came late.
            best = [p for p in self._best.values() if p.launches == best.launches][-1]
            return _sums(best.views(), whole=True)
        return _sums([self._last] if self._last is not None else [], whole=False)


def _launches(view: KernelView) -> int:
    return sum(m.launches for m in view.modes)


def _sums(views: Sequence[KernelView], whole: bool) -> tuple[KernelCover, tuple[KernelFigures, ...]]:
    modes: dict[str, list[KernelMode]] = {}
    for v in views:
        for m in v.modes:
            modes.setdefault(m.mode, []).append(m)
    totals = tuple(
        KernelModeFigures(
            mode,
            forwards=sum(m.forwards for m in parts),
            launches=sum(m.launches for m in parts),
            total_ms=sum(m.total_ms for m in parts),
        )
        for mode, parts in modes.items()
    )
    rows = tuple(row for m in totals for row in _rows(m, [k for part in modes[m.mode] for k in part.rows]))
    return KernelCover(sum(v.traced_s for v in views), len(views), whole, totals), rows


def _rows(m: KernelModeFigures, parts: Sequence[Kernel]) -> Iterator[KernelFigures]:
    """One mode's rows, the longest total first, and what its tables left out as the last."""
    same: dict[str, list[Kernel]] = {}
    for k in parts:
        same.setdefault(k.full_name or k.name, []).append(k)
    rows = sorted((_row(m, kernels) for kernels in same.values()), key=lambda k: -k.total_ms)
    yield from rows
    left, ms = m.launches - sum(k.count for k in rows), m.total_ms - sum(k.total_ms for k in rows)
    if left > 0:
        yield KernelFigures(
            m.mode, REST, "", ms / m.total_ms if m.total_ms else 0.0, ms, left, ms * 1e3 / left, None, None, None,
            None, left / m.forwards if m.forwards else None,
        )  # fmt: skip


def _row(m: KernelModeFigures, parts: Sequence[Kernel]) -> KernelFigures:
    """One kernel. All is exact but the median: that of the parts, weighted by their counts."""
    n = sum(k.count for k in parts)
    ms = math.fsum(k.total_ms for k in parts)
    mean = ms * 1e3 / n
    # The parts' own spread, and that of their means around the common one.
    square = math.fsum((k.count - 1) * k.stddev_us**2 + k.count * (k.avg_us - mean) ** 2 for k in parts)
    newest = parts[-1]
    return KernelFigures(
        mode=m.mode,
        name=newest.name,
        category=newest.category,
        share=ms / m.total_ms if m.total_ms else 0.0,
        total_ms=ms,
        count=n,
        avg_us=mean,
        med_us=math.fsum(k.count * k.med_us for k in parts) / n,
        min_us=min(k.min_us for k in parts),
        max_us=max(k.max_us for k in parts),
        stddev_us=math.sqrt(square / (n - 1)) if n > 1 else 0.0,
        per_step=n / m.forwards if m.forwards else None,
    )
