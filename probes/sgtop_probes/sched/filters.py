"""In-kernel filters for the scheduler's tracepoints: only switches and wake-ups of the watched threads are recorded."""

from __future__ import annotations

from collections.abc import Iterable

MAX_BYTES = 4000
"""The kernel takes a page at most."""


def ranges(tids: Iterable[int], most: int) -> list[tuple[int, int]]:
    """Sorted (first, last) ranges that hold all tids, at most ``most`` of them.

    The smallest holes are closed first: a foreign thread that stands in one is recorded too, and dropped by the reader.
    """
    out = [(t, t) for t in sorted(set(tids))]
    if len(out) <= most:
        return out
    holes = sorted(range(len(out) - 1), key=lambda i: out[i + 1][0] - out[i][1])
    close = set(holes[: len(out) - most])
    merged: list[tuple[int, int]] = []
    for i, (a, b) in enumerate(out):
        if i and i - 1 in close:
            merged[-1] = (merged[-1][0], b)
        else:
            merged.append((a, b))
    return merged


def _any(fields: tuple[str, ...], spans: list[tuple[int, int]]) -> str:
    terms = []
    for a, b in spans:
        for f in fields:
            terms.append(f"{f}=={a}" if a == b else f"({f}>={a} && {f}<={b})")
    return " || ".join(terms)


def build(fields: tuple[str, ...], tids: Iterable[int], limit: int = MAX_BYTES) -> str:
    """A filter that is true where one of ``fields`` is one of ``tids``, at most ``limit`` bytes long.

    Without tids it is false for every thread.
    """
    want = sorted(set(tids))
    if not want:
        return " && ".join(f"{f}<0" for f in fields)
    most = len(want)
    while True:
        text = _any(fields, ranges(want, most))
        if len(text) <= limit or most == 1:
            return text
        most = max(1, most * limit // len(text))
