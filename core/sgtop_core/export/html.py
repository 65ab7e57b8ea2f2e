"""A timeline as one HTML page that needs no network: three aligned areas, drawn with uPlot on canvases.

The page's own code is in ``page/``; uPlot is vendored with its licence. The data travel as one gzip of typed arrays
in base64: ``Float64`` starts, ``Float32`` lengths (both ns from the start), ``Uint32`` names and 32-bit arguments.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from importlib import resources
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from .timeline import Timeline, Track, lanes

MISSING = -(2**31)
"""Stands for an argument that is not known."""


class _Blob:
    """Typed arrays side by side, 8-byte aligned, so that the page views them without a copy."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, a: npt.NDArray[Any], dtype: str) -> list[Any]:
        """Keep ``a``; what the page needs to view it: [type, offset, length]."""
        raw = np.ascontiguousarray(a, dtype=dtype).tobytes()
        at = self._size
        raw += bytes(-len(raw) % 8)
        self._parts.append(raw)
        self._size += len(raw)
        return [dtype, at, len(a)]

    def base64(self) -> str:
        return base64.b64encode(gzip.compress(b"".join(self._parts), 6, mtime=0)).decode("ascii")


def _rows(t: Timeline, track: Track, blob: _Blob) -> list[dict[str, Any]]:
    s = track.spans
    lane = lanes(s)
    out = []
    for k in range(int(lane.max()) + 1 if len(lane) else 0):
        rows = np.flatnonzero(lane == k)
        args = {}
        for name, v in s.args.items():
            chosen = v[rows]
            fits = (chosen != -1) & (np.abs(chosen) < 2**31)
            args[name] = blob.add(np.where(fits, chosen, MISSING), "<i4")
        out.append(
            {
                "group": track.group,
                "title": track.title,
                "kind": track.kind,
                "area": track.area,
                "t0": blob.add(s.t0[rows] - t.start_ns, "<f8"),
                "len": blob.add(s.t1[rows] - s.t0[rows], "<f4"),
                "name": blob.add(s.name[rows], "<u4"),
                "args": args,
            }
        )
    return out


def page(t: Timeline) -> str:
    """The whole page."""
    blob = _Blob()
    model = {
        "title": t.title,
        "span_ns": t.end_ns - t.start_ns,
        "start_unix_ms": None if t.real_offset_ns is None else (t.start_ns + t.real_offset_ns) / 1e6,
        "names": list(t.names),
        "groups": [{"label": g.label, "pid": g.pid, "note": g.note} for g in t.groups],
        "rows": [row for track in t.tracks for row in _rows(t, track, blob)],
        "counters": [
            {
                "group": c.group,
                "name": c.name,
                "unit": c.unit,
                "t": blob.add(c.t - t.start_ns, "<f8"),
                "v": blob.add(c.v, "<f8"),
            }
            for c in t.counters
        ],
        "marks": [
            {"t": m.t - t.start_ns, "group": m.group, "severity": m.severity, "name": m.name, "text": m.text}
            for m in t.marks
        ],
    }
    files = resources.files(__package__)

    def read(*path: str) -> str:
        return files.joinpath(*path).read_text(encoding="utf-8")

    # "</" inside a script would end it; JSON allows the slash to be escaped.
    data = json.dumps(model, ensure_ascii=True, allow_nan=False).replace("</", "<\\/")
    parts = {
        "TITLE": _escape(t.title or "sgtop"),
        "UPLOT_LICENSE": read("vendor", "uplot", "LICENSE").strip(),
        "UPLOT_CSS": read("vendor", "uplot", "uPlot.min.css"),
        "UPLOT_JS": read("vendor", "uplot", "uPlot.iife.min.js"),
        "CSS": read("page", "page.css"),
        "JS": "\n".join(read("page", name) for name in ("data.js", "areas.js", "page.js")),
        "MODEL": data,
        "BLOB": blob.base64(),
    }
    # One pass: a name in the data that looks like a placeholder stays what it is.
    return re.sub("%%([A-Z_]+)%%", lambda m: parts[m[1]], read("page", "page.html"))


def _escape(s: str) -> str:
    return s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def write(timeline: Timeline, out: IO[str]) -> None:
    """Write the page to ``out``."""
    out.write(page(timeline))
