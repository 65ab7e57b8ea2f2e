"""Where findings begin and end in a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .feed import Feed
from .reader import Recording


@dataclass(frozen=True, slots=True)
class Finding:
    """A moment at which a finding began or ended."""

    mono_ns: int
    rank: str | None
    severity: str
    title: str
    text: str
    began: bool


def findings(
    recording: Recording, until_ns: int | None = None, stop: Callable[[], bool] = lambda: False
) -> list[Finding]:
    """All of them up to a time, by feeding the recording through the model; ``stop`` breaks it off."""
    feed = Feed()
    out: list[Finding] = []
    active: dict[tuple[str, str | None], str] = {}
    for e in recording:
        if stop() or (until_ns is not None and e.mono_ns > until_ns):
            break
        if not feed.take(e):
            continue
        now = {(a.id, a.rank): a for a in feed.model.alerts if a.active}
        for key, a in now.items():
            if key not in active:
                text = f"{a.evidence} → {a.next}" if a.next else a.evidence
                out.append(Finding(feed.now, a.rank, a.severity, a.title, text, True))
        for key, title in active.items():
            if key not in now:
                out.append(Finding(feed.now, key[1], "info", f"ended: {title}", "", False))
        active = {key: a.title for key, a in now.items()}
    return out
