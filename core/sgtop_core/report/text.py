"""A report as text: a head in words, then the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePath

from sgtop_core.recording.reader import damaged

from .figures import REST, Figures
from .tables import TRACED, Table, Value, grid, tables

SHARES = {"gaps": "% of gaps", "stages": "% of time"}
"""Table → its column that adds up to 100 %."""
LEAST = 0.1
"""Per cent of it that a row must have to be shown by itself."""


def head(f: Figures) -> Iterator[str]:
    """What was recorded, when, how, and what is missing from it."""
    s = f.server
    size = " ".join(f"{n}{v}" for n, v in (("TP", s.tp), ("DP", s.dp), ("PP", s.pp)) if v and (v > 1 or n == "TP"))
    yield " ".join(
        x for x in (PurePath(s.model or "?").name, size, f"SGLang {s.sglang_version}" if s.sglang_version else "") if x
    )
    began = "" if f.start_unix is None else time.strftime("%Y-%m-%d %H:%M:%S, ", time.localtime(f.start_unix))
    port = f", port {s.port}" if s.port else ""
    yield f"{began}{f.seconds:.1f} s, attached through {f.way or '–'}{port}: {f.file}"
    if f.hook_us_p50 is not None and f.hook_us_p99 is not None:
        yield f"cost of sgtop on the main thread: {f.hook_us_p50:.1f} µs a step p50, {f.hook_us_p99:.1f} p99"
    if not f.complete:
        yield "The recording was broken off: it ends where the last whole second was written."
    if f.damage:
        yield f"{damaged(f.damage)} {'was' if f.damage == 1 else 'were'} skipped."
    for table, n in f.lost.items():
        yield f"{n} rows of {table} were lost while it was recorded: counts are too low by as much."


def text(f: Figures) -> str:
    """The whole report."""
    out = [*head(f)]
    for t in tables(f):
        if t.key == "alerts" and t.rows:
            out += ["", "Findings"]
            for x in f.alerts:
                out += [f"  {x.alert.severity}: {x.title} ({x.seconds:.0f} s)", f"    {x.alert.evidence}"]
                if x.alert.next:
                    out.append(f"    → {x.alert.next}")
        elif t.rows:
            out += ["", t.title, *("  " + x for x in grid(*_short(t)))]
    if not any(t.key == "alerts" and t.rows for t in tables(f)):
        out += ["", "No findings."]
    return "\n".join(out) + "\n"


def _short(t: Table) -> tuple[tuple[str, ...], tuple[tuple[Value, ...], ...]]:
    """Head and rows for the eye: what makes up less than a thousandth of the gaps or the time is one row, ``rest``."""
    if TRACED in t.head:  # the title says it
        at = t.head.index(TRACED)
        return t.head[:at] + t.head[at + 1 :], tuple(r[:at] + r[at + 1 :] for r in t.rows)
    share = SHARES.get(t.key)
    if share is None:
        return t.head, t.rows
    at = t.head.index(share)
    return t.head, tuple(x for _, own in groupby(t.rows, key=lambda r: r[0]) for x in _rank_rows(list(own), at))


def _rank_rows(rows: Sequence[tuple[Value, ...]], at: int) -> Iterator[tuple[Value, ...]]:
    """One rank's rows; those with little in column ``at`` add up to the last."""
    small = [r for r in rows if isinstance(share := r[at], float) and share < LEAST]
    if len(small) < 2:  # a rest of one says less than the row
        small = []
    yield from (r for r in rows if r not in small)
    if small:
        sums = (_sum(column) for column in zip(*(r[2:] for r in small), strict=True))
        yield (rows[0][0], REST, *sums)


def _sum(column: Sequence[Value]) -> Value:
    known = [v for v in column if isinstance(v, (int, float))]
    return sum(known) if known else None
