"""Recordings made of generated frames, for tests of what is made from recordings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sgtop_core.recording.chunk import Entry, encode
from sgtop_core.recording.quantise import quantise
from sgtop_core.recording.reader import Sticky
from sgtop_core.recording.writer import FileWriter

from tests.recording import frames


def entries(ranks: int, seconds: float, *, steps_per_s: int = 100, gpu: bool = True) -> list[Entry]:
    """Entries as a session records them: times rounded."""
    return [Entry(s, quantise(f), t) for s, f, t in frames.stream(ranks, seconds, steps_per_s=steps_per_s, gpu=gpu)]


def write(path: Path, all_entries: Iterable[Entry], *, chunk_ns: int = 800_000_000) -> Path:
    """A file with a chunk for every ``chunk_ns``."""
    w = FileWriter(path, {"made": "test"}, overwrite=True)
    sticky = Sticky()
    part: list[Entry] = []

    def put() -> None:
        if part:
            w.add(encode(part, sticky.entries()), part[0].mono_ns, part[-1].mono_ns, len(part))
        for e in part:
            sticky.see(e)
        part.clear()

    for e in all_entries:
        if part and e.mono_ns - part[0].mono_ns > chunk_ns:
            put()
        part.append(e)
    put()
    w.close()
    return path
