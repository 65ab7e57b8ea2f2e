"""Recordings of real servers that come with sgtop: used by tests and by ``sgtop demo``.

Each is one file beside this one; its meta holds ``demo`` (a sentence), where and when it was recorded, and an order.
``bench/record_demos.py`` and ``bench/gpu/record_sessions.py`` make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from io import BytesIO

from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.reader import Recording

SUFFIX = ".sgtop"


class NoSuchDemo(RecordingError):
    """No embedded recording has that name."""

    exit_code = 2
    """The command line is wrong."""


@dataclass(frozen=True, slots=True)
class Demo:
    """One embedded recording."""

    name: str
    says: str
    seconds: float
    bytes: int
    order: int


def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath(name + SUFFIX).read_bytes()


def all_demos() -> list[Demo]:
    """All of them, in the order in which they explain sgtop best."""
    out = []
    for f in resources.files(__package__).iterdir():
        if f.name.endswith(SUFFIX):
            raw = f.read_bytes()
            with Recording(BytesIO(raw)) as r:
                says, order = str(r.meta.get("demo", "")), int(r.meta.get("order", 99))
                out.append(Demo(f.name.removesuffix(SUFFIX), says, r.seconds, len(raw), order))
    return sorted(out, key=lambda d: (d.order, d.name))


def open_demo(name: str | None = None) -> Recording:
    """The recording ``name``, or the first.

    Raises:
        RecordingError: there is none of that name.
    """
    demos = all_demos()
    if not demos:
        raise RecordingError(
            "this sgtop was packaged without its recordings", "", "pip install --force-reinstall sgtop-profiler"
        )
    names = [d.name for d in demos]
    chosen = name or names[0]
    if chosen not in names:
        raise NoSuchDemo(f"there is no demo {chosen!r}", f"there are {', '.join(names)}", "sgtop demo --list")
    return Recording(BytesIO(_read(chosen)))
