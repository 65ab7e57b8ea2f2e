"""Kernel tracing of one rank, as sgtop's side sees it: frames and ring in, a ``KernelView`` out.

Records are held back until the forwards that they belong to are known (their rows take a moment longer), then counted
once. Nothing here waits or talks: the session passes in what arrived and sends what ``names_wanted`` asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sgtop_core.model.arrays import EMPTY, I64, Bool
from sgtop_core.model.kernel_view import KernelView

from .attribute import Forwards, Owners, union_length
from .categories import Categories
from .clock import Clock
from .cut import Replays, cut, filled, without
from .gaps import THRESHOLD_NS, GapFinder, RollingGaps
from .inflation import inflation
from .names import NameTable
from .parse import Parser, Records
from .ring import Buffer, RingError, RingReader
from .table import MAX_KERNELS, Rolling, summarise
from .view import gap_rows, tables
from .why import LongGaps, Why

HOLD_NS = 3_000_000_000
"""Longest wait for the rows of a kernel's forward."""
COUNT_NS = 200_000_000
"""Counting comes in blocks of this length: the calls cost more than the kernels in them."""
REORDER_NS = 150_000_000
"""Buffers come back out of order by less: three flushes."""
EDGE_NS = 20_000_000
"""A window without kernels for longer than this at its edge was idle there; less is the launch queue."""
ROUNDED_NS = 20_000
"""Host times come rounded to less. No forward is launched while the main thread switches tracing."""
_MAX_PENDING = 4_000_000
_SPANS = 16384
_OPEN = 1 << 62
_COLUMNS = ("start", "end", "name", "stream", "graph", "bytes")


class KernelTracker:
    """One rank's kernels. Single-threaded: call it from the session's thread of that rank."""

    def __init__(
        self, modes: Mapping[int, str], categories: Categories | None = None, threshold_ns: int = THRESHOLD_NS
    ) -> None:
        """``modes``: number → name of the server's ForwardMode."""
        self.names = NameTable(categories)
        self.forwards = Forwards(modes)
        self.clock = Clock()
        self._ring: RingReader | None = None
        self._parser: Parser | None = None
        self._state: dict[str, Any] = {}
        self._problem = ""
        self._pending: list[dict[str, I64]] = []
        self._waiting_for_clock: deque[tuple[Buffer, Records]] = deque(maxlen=64)
        self._numbers: dict[int, int] = {}
        self._addresses: list[int] = []
        self._sorted: tuple[I64, I64] = (EMPTY, EMPTY)
        self._stats, self._gaps = Rolling(), RollingGaps()
        self._long = LongGaps(self._gaps)
        self._finder = GapFinder(threshold_ns)
        self.why: Why | None = None
        """What is known of the main thread of this rank."""
        self._spans: deque[tuple[int, int, int, int, int]] = deque(maxlen=_SPANS)
        """(begin, end, busy, communication, compute) ns of each block that was counted."""
        self._forward_counts: deque[tuple[int, dict[int, int]]] = deque(maxlen=_SPANS)
        self._last_forward: dict[int, int] = {}
        self._windows: dict[int, tuple[int, int]] = {}
        self._whole_until: dict[int, int] = {}
        """Window → its end, or when the first of the forwards began that it cut."""
        self._replays = Replays()
        self._holes: dict[int, int] = {}
        """Forwards that lack kernels though they ran in a window: begin → end, ns."""
        self._epoch = 0
        self._talks, self._talks_version = np.zeros(0, bool), -1
        self._count_at = 0
        self._shown = KernelView("off", "off", "")
        self._figures_at = (-1, 0.0, -1, -1)
        self._done_until = 0
        self._since: int | None = None
        """From when on the ring's kernels are known here, ns: another client may have traced before."""
        self.on_block: Callable[[Mapping[str, I64]], None] | None = None
        """Sees every record that is counted, as columns: start, end (CLOCK_MONOTONIC ns), name (an address; below 0 a
        copy or set), stream, graph, bytes. For recordings."""
        self.records = 0
        self.cut = 0
        """Records dropped since their forward was not there as a whole."""
        self.untimed = 0
        self.malformed = 0

    # --- what arrives --------------------------------------------------------------------------------------------

    def on_ring(self, fd: int) -> None:
        """The ring's descriptor came with the reply to ``kernels``; the caller closes it.

        Raises:
            RingError: it is no ring that this sgtop reads. LayoutError: its records are unknown.
        """
        if self._ring is not None:
            return
        ring = RingReader(fd)
        self._parser = Parser(ring.strides)
        self._ring = ring

    def on_state(self, frame: Mapping[str, Any]) -> None:
        """A ``kernels`` frame, or the reply to ``kernels``."""
        self._state = dict(frame)
        for row in frame.get("windows") or ():
            # What ran while the kinds were being disabled may be cut as well: the window ends where that began.
            self._windows[int(row[0])] = (int(row[1]), int(row[2]) - (int(row[4]) if len(row) > 4 else 0))
        on = frame.get("on")
        if on:
            self._windows[int(on[0])] = (int(on[1]), _OPEN)
        for known in (self._windows, self._whole_until, self._holes):
            while len(known) > 1024:
                del known[min(known)]

    def on_problem(self, why: str) -> None:
        """The command failed, or its answer could not be used: in words."""
        self._problem = why

    def on_forwards(self, rows: Mapping[str, I64]) -> None:
        """Rows of the ``forward`` table."""
        self.forwards.add(rows)

    def names_wanted(self) -> list[int]:
        """Addresses to ask the agent for with ``kernel_names`` (argument ``pointers``)."""
        return self.names.ask()

    # --- work ----------------------------------------------------------------------------------------------------

    def poll(self, now: int) -> int:
        """Read the ring and count what can be counted; about 20 times a second. Returns the records read."""
        if self._ring is None or self._parser is None:
            return 0
        n = 0
        for sample in self._ring.clock_samples():
            self.clock.add(sample)
        for buffer in self._ring.poll():
            records = self._parser.parse(buffer.data)
            self.records += len(records)
            self.untimed += records.untimed
            self.malformed += records.malformed
            n += len(records)
            self._waiting_for_clock.append((buffer, records))
        if self.clock.ready:
            while self._waiting_for_clock:
                self._hold(*self._waiting_for_clock.popleft())
        if self._since is None:  # a session that runs already is read from its oldest buffer on
            self._since = min([now, *(int(b["start"].min()) for b in self._pending)])
        self._count(now)
        self._long.count(self.why, now)
        return n

    def _hold(self, buffer: Buffer, r: Records) -> None:
        if not len(r):
            return
        both = self.clock.convert(np.concatenate((r.start, r.end)), buffer.t_ns)
        block = {
            "start": both[: len(r)], "end": both[len(r) :], "name": r.name, "stream": r.stream, "graph": r.graph,
            "bytes": r.bytes, "epoch": np.full(len(r), buffer.epoch),
        }  # fmt: skip
        self._pending.append(block)

    def _count(self, now: int) -> None:
        """Count pending records up to where their forwards are known."""
        if not self._pending or now < self._count_at:
            return
        self._count_at = now + COUNT_NS
        size = sum(len(b["start"]) for b in self._pending)
        until = now - REORDER_NS
        # On a server that runs no forwards there is nothing to wait for; else wait, but not for ever.
        known = min(until, self.forwards.known_until)
        # Not the half of a forward: its other half may show that it was cut.
        until = min(until, max(self.forwards.whole_until(known), now - HOLD_NS))
        if size > _MAX_PENDING:
            until = now
        if min(int(b["end"].min()) for b in self._pending) > until:
            return
        rows = {c: np.concatenate([b[c] for b in self._pending]) for c in self._pending[0]}
        ready = rows["end"] <= until
        order = np.flatnonzero(ready)
        order = order[np.argsort(rows["start"][order], kind="stable")]
        rest = np.flatnonzero(~ready)
        self._pending = [{c: v[rest] for c, v in rows.items()}] if len(rest) else []
        rows = {c: v[order] for c, v in rows.items()}
        for epoch in np.unique(rows["epoch"]):
            mine = rows["epoch"] == epoch
            self._block(int(epoch), {c: v[mine] for c, v in rows.items()})
        self._done_until = max(self._done_until, until)

    def _block(self, epoch: int, b: dict[str, I64]) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._finder.restart()
        if not len(b["start"]):
            return
        found = cut(b, self.forwards, self._replays, *self._windows.get(epoch, (0, _OPEN)))
        self._holes.update(zip(found.holes["begin"].tolist(), found.holes["finish"].tolist(), strict=True))
        if not found.keep.all():
            self.cut += int(np.count_nonzero(~found.keep))
            b = {name: column[found.keep] for name, column in b.items()}
        if not len(b["start"]):
            return
        if self.on_block is not None:
            self.on_block(b)
        start, end = b["start"], b["end"]
        owners = found.owners
        kernel = self._number(b["name"])
        second = int(end.max()) // 1_000_000_000
        self._stats.add(second, summarise(owners.code, kernel, end - start, b["graph"], b["bytes"]))
        self._forward_counts.append((second, self._new_forwards(epoch, owners)))
        gaps = self._finder.find(*filled(start, end, owners, found.holes))
        short = gaps.b - gaps.a < self._finder.threshold_ns
        brief = gaps.only(short)
        self._gaps.add(second, brief.b - brief.a, brief.code, brief.cause)
        self._long.add(gaps.only(~short))
        talk = self._communication()[kernel]
        any_talk, busy = bool(talk.any()), union_length(start, end, ordered=True)
        self._spans.append(
            (
                int(start[0]),
                int(end.max()),
                busy,
                union_length(start[talk], end[talk], ordered=True) if any_talk else 0,
                union_length(start[~talk], end[~talk], ordered=True) if any_talk else busy,
            )
        )

    def _new_forwards(self, epoch: int, owners: Owners) -> dict[int, int]:
        """Code → forwards whose first kernel is in this block.

        Tracing is switched between two steps of the host, and what counts is whether it was on at the launch: a
        forward is traced whole or not at all. One that was launched before or after can only own a stray kernel at its
        edge.
        """
        on, off = self._windows.get(epoch, (0, _OPEN))
        whole = (owners.forward >= 0) & (owners.host >= on - ROUNDED_NS)
        if self.forwards.timed:  # else a kernel's forward is a guess
            whole &= owners.host <= off
        numbers, at = np.unique(owners.forward[whole], return_index=True)
        codes = owners.code[whole][at]
        out: dict[int, int] = {}
        for code in np.unique(codes):
            mine = numbers[codes == code]
            n = int(np.count_nonzero(mine > self._last_forward.get(int(code), -1)))
            if n:
                out[int(code)] = n
                self._last_forward[int(code)] = max(int(mine.max()), self._last_forward.get(int(code), -1))
        return out

    def _number(self, name: I64) -> I64:
        """Dense numbers of kernel names."""
        known, numbers = self._sorted
        at = np.minimum(np.searchsorted(known, name), max(len(known) - 1, 0))
        if not len(known) or not bool((known[at] == name).all()):
            fresh = [int(a) for a in np.unique(name) if int(a) not in self._numbers]
            for a in fresh:
                if len(self._addresses) < MAX_KERNELS:
                    self._numbers[a] = len(self._addresses)
                    self._addresses.append(a)
            self.names.see(fresh)
            known = np.array(sorted(self._numbers), np.int64)
            numbers = np.array([self._numbers[int(a)] for a in known], np.int64)
            self._sorted = known, numbers
            at = np.minimum(np.searchsorted(known, name), len(known) - 1)
        out: I64 = numbers[at]
        return out

    def _communication(self) -> Bool:
        """Whether each kernel number is a communication kernel; a name may still be on its way."""
        if len(self._talks) != len(self._addresses) or self._talks_version != self.names.version:
            self._talks = np.array([self.names.get(a).category == "communication" for a in self._addresses], bool)
            self._talks_version = self.names.version
        return self._talks

    # --- what is shown -------------------------------------------------------------------------------------------

    def view(self, now: int, window_s: float) -> KernelView:
        """The last ``window_s`` seconds, or the latest tracing window where that saw none.

        The tables are made anew once a second, when another window is asked for, and when the last kernel of a tracing
        window was counted: a recording that ends within the second has it all. The state is as it is now.
        """
        s = self._state
        newest = self._stats.newest
        since = now // 1_000_000_000 - int(window_s)
        if newest is not None and newest < since + 1:
            since = newest - max(int(float(s.get("window_s", 1.0))), 1)
        counted = not (s.get("on") or self._pending or self._waiting_for_clock or self._long.waiting)
        key = (now // 1_000_000_000, window_s, self.names.version, self._epoch if counted else 0)
        if self._figures_at != key:
            self._figures_at = key
            self._shown = self._figures(now, since)
        return replace(
            self._shown,
            mode=str(s.get("mode", "off")),
            state="unavailable" if self._problem else str(s.get("state", "off")),
            reason=self._problem or str(s.get("reason", "")),
            window_s=float(s.get("window_s", 1.0)),
            period_s=float(s.get("period_s", 10.0)),
            ring_bytes=int(s.get("ring_bytes") or 0),
            cupti=s.get("cupti") if isinstance(s.get("cupti"), int) else None,
        )

    def _figures(self, now: int, since: int) -> KernelView:
        """What is summed up from the second ``since`` on."""
        begin = max(since * 1_000_000_000, self._since or 0)
        for epoch, (_, off) in self._windows.items():
            if off < self.forwards.known_until and epoch not in self._whole_until:
                cut_off = self.forwards.unfinished(off, off)["begin"]
                self._whole_until[epoch] = min(off, *cut_off.tolist(), _OPEN)
        stretches = [
            (max(a, begin), min(b, self._done_until, self._whole_until.get(epoch, b)))
            for epoch, (a, b) in self._windows.items()
            if b > begin and a < self._done_until
        ]
        forwards: dict[int, int] = {}
        for second, codes in self._forward_counts:
            if second >= since:
                for code, n in codes.items():
                    forwards[code] = forwards.get(code, 0) + n
        labels = self.forwards.labels
        modes, copies, categories = tables(self._stats.since(since), labels, forwards, self._addresses, self.names)
        gaps, all_gaps = gap_rows(self._gaps.since(since), labels)
        seen, busy, talk, exposed = self._shares(stretches)
        traced = sum(b - a for a, b in seen)
        events = [e for e in (self.forwards.busy(a, b) for a, b in seen) if e is not None]
        begun = sorted((a, min(b, now)) for a, b in self._windows.values())
        cost = inflation(*self.forwards.steps(), begun)
        return KernelView(
            mode="",
            state="",
            reason="",
            traced_s=traced / 1e9,
            newest_s=None if self._stats.newest is None else self._stats.newest + 1.0,
            threshold_us=self._finder.threshold_ns / 1e3,
            records=self.records,
            lost_buffers=self._ring.lost if self._ring is not None else 0,
            untimed=self.untimed,
            cut=self.cut,
            modes=modes,
            gaps=gaps,
            all_gaps=all_gaps,
            copies=copies,
            busy_share=busy / traced if traced else None,
            communication_share=talk / traced if traced else None,
            communication_exposed_share=exposed / traced if traced else None,
            event_busy_share=min(sum(events) / traced, 1.0) if traced and events else None,
            categories_ms=categories,
            inflation={labels[c]: r for c, r in cost.items()},
        )

    def _shares(self, stretches: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int, int, int]:
        """What was seen on the GPU of the stretches, and busy, communication, communication alone in it, ns.

        Kernels begin a little after tracing is enabled on the host and run on a little after it is disabled; such an
        edge is not idle time. Blocks overlap by what ran across their border: each counts from where the last ended.
        """
        seen: list[tuple[int, int]] = []
        busy = talk = exposed = 0
        for a, b in stretches:
            spans = [s for s in self._spans if s[1] > a and s[0] < b + EDGE_NS]
            if not spans:
                seen.append((a, max(a, b)))
                continue
            first, last = min(s[0] for s in spans), max(s[1] for s in spans)
            # What was launched before tracing was on may run for long after it (prefills: half a second), unseen.
            a = max(a, min(self.forwards.launched_until(a), first))
            begin = first if 0 <= first - a < EDGE_NS else a
            seen.append((begin, max(last if abs(b - last) < EDGE_NS else max(b, last), begin + 1)))
            reach = begin
            for s0, s1, u, t, c in sorted(spans):
                overlap = max(0, reach - s0)
                busy += max(u - overlap, 0)
                talk += t
                exposed += max(u - c, 0)
                reach = max(reach, s1)
        seen = without(seen, sorted(self._holes.items()))
        traced = sum(b - a for a, b in seen)
        return seen, min(busy, traced), min(talk, traced), min(exposed, traced)

    def close(self) -> None:
        """Unmap the ring."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None


__all__ = ["KernelTracker", "RingError"]
