"""The exports as one call each: a recording, a range, a place to write to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.feed import Feed
from sgtop_core.recording.reader import Recording

from . import html, perfetto
from .build import build, gather
from .timeline import Mark, Timeline

MAX_EVENTS = {"perfetto": 3_000_000, "html": 400_000}
"""Most events that an export takes in: beyond it the viewers, not sgtop, give up."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was written."""

    path: str
    events: int
    from_s: float
    until_s: float
    cut: bool
    """There was more than fits: the range ends earlier than asked."""


def timeline(
    recording: Recording, *, from_s: float | None, until_s: float | None, max_events: int
) -> tuple[Timeline, bool]:
    """(timeline of a range, whether it was cut short).

    Raises:
        RecordingError: the range holds nothing.
    """
    start = recording.start_ns
    lo = start + int((from_s or 0.0) * 1e9)
    hi = recording.end_ns if until_s is None else min(start + int(until_s * 1e9), recording.end_ns)
    if lo >= hi:
        length = f"the recording is {recording.seconds:.1f} s long"
        raise RecordingError("there is nothing in that range", length, "--from and --until are seconds from its start")
    got = gather(recording.entries(lo if from_s else None), until_ns=hi, max_events=max_events)
    cut = got.events > max_events and got.last_ns < hi
    if cut:
        hi = got.last_ns
    hello = next((s.hello for s in got.sources.values() if s.hello), {})
    title = f"{hello.get('model') or 'sgtop'}: {Path(recording.name).name}"
    return build(got, lo=lo, hi=hi, marks=alerts(recording, hi), title=title), cut


def alerts(recording: Recording, until_ns: int) -> list[Mark]:
    """Where findings began and ended, by feeding the recording through the model."""
    feed = Feed()
    marks: list[Mark] = []
    active: dict[tuple[str, str | None], str] = {}
    for e in recording:
        if e.mono_ns > until_ns:
            break
        if not feed.take(e):
            continue
        now = {(a.id, a.rank): a for a in feed.model.alerts if a.active}
        for key, a in now.items():
            if key not in active:
                text = f"{a.evidence} → {a.next}" if a.next else a.evidence
                marks.append(Mark(feed.now, a.rank or "server", a.severity, a.title, text))
        for key, title in active.items():
            if key not in now:
                marks.append(Mark(feed.now, key[1] or "server", "info", f"ended: {title}"))
        active = {key: a.title for key, a in now.items()}
    return marks


def export(
    path: str | os.PathLike[str], to: str, out: str | os.PathLike[str], *,
    from_s: float | None = None, until_s: float | None = None, overwrite: bool = False, max_events: int | None = None,
) -> Done:  # fmt: skip
    """Write the recording ``path`` as ``to`` (perfetto, html) to the file ``out``.

    Raises:
        RecordingError: the recording cannot be read, or ``out`` not be written.
    """
    with Recording(path) as r:
        t, cut = timeline(r, from_s=from_s, until_s=until_s, max_events=max_events or MAX_EVENTS[to])
        start = r.start_ns
    try:
        mode = "w" if overwrite else "x"
        if to == "perfetto":
            with open(out, mode + "b") as f:
                perfetto.write(t, f)
        else:
            with open(out, mode, encoding="utf-8") as text:
                html.write(t, text)
    except FileExistsError:
        raise RecordingError(f"{out} is there already", "", "-f writes over it") from None
    except OSError as e:
        raise RecordingError(f"{out} cannot be written", e.strerror or str(e)) from e
    return Done(str(out), t.events, (t.start_ns - start) / 1e9, (t.end_ns - start) / 1e9, cut)
