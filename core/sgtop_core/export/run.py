"""The exports as one call each: a recording, a range, a place to write to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.marks import findings
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
    complete: bool
    damage: int
    """Of the recording, as its reader has them."""


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
    title = f"{Path(str(hello.get('model') or 'sgtop')).name}: {Path(recording.name).name}"
    return build(got, lo=lo, hi=hi, marks=_alerts(recording, hi), title=title), cut


def _alerts(recording: Recording, until_ns: int) -> list[Mark]:
    return [Mark(m.mono_ns, m.rank or "server", m.severity, m.title, m.text) for m in findings(recording, until_ns)]


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
        start, complete, damage = r.start_ns, r.complete, r.damage
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
    return Done(str(out), t.events, (t.start_ns - start) / 1e9, (t.end_ns - start) / 1e9, cut, complete, damage)
