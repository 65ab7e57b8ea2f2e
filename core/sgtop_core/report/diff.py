"""What changed between two recordings, by how much, and how much of it is noise.

A figure's noise comes from its values in the 5 s blocks of each recording: the means of random draws of the blocks
(bootstrap, 2,000 draws, a fixed seed) give a 95 % interval of the difference. Neighbouring blocks are taken as
independent; where load drifts, the true noise is larger. With fewer than ``MIN_BLOCKS`` blocks it is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sgtop_core.model.bins import PER_DECADE

from .figures import BLOCK_S, AlertFigures, Figures, RankFigures, severity
from .tables import Value, grid

DRAWS = 2_000
MIN_BLOCKS = 4
BIN = 10 ** (1 / PER_DECADE / 2) - 1
"""A quantile is this much off at most, as a share of it."""
SMALL = 0.01
"""A change of less than this share of the figure is not worth a line, however sure it is."""
SMALL_POINTS = 0.5
"""The same for figures in per cent, in points."""

CHANGED, NOISE, SAME, UNSURE, ONLY_A, ONLY_B = (
    "changed",
    "within noise",
    "same",
    "noise not known",
    "only in A",
    "only in B",
)


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one rank in both recordings; ``low`` and ``high`` are the 95 % interval of B - A."""

    rank: str
    figure: str
    a: float | None
    b: float | None
    low: float | None
    high: float | None
    verdict: str

    @property
    def delta(self) -> float | None:
        """B - A."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def share(self) -> float | None:
        """(B - A) ÷ A."""
        return None if self.delta is None or not self.a else self.delta / abs(self.a)


@dataclass(frozen=True, slots=True)
class Diff:
    """Two recordings side by side."""

    a: Figures
    b: Figures
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    """What makes the comparison weaker, in words."""


def diff(a: Figures, b: Figures) -> Diff:
    """Compare two recordings, rank by rank where both have the rank."""
    ranks_a, ranks_b = {r.rank: r for r in a.ranks}, {r.rank: r for r in b.ranks}
    changes = tuple(c for label in ranks_a if label in ranks_b for c in _rank(ranks_a[label], ranks_b[label]))
    return Diff(a, b, changes, tuple(_notes(a, b)))


def _rank(a: RankFigures, b: RankFigures) -> Iterator[Change]:
    names = list(dict.fromkeys([*a.blocks, *b.blocks]))
    for name in sorted(names, key=_order):
        yield _change(a.rank, name, _values(a, name), _values(b, name))


def _order(name: str) -> tuple[int, str]:
    """Rates first, then lengths, then where the time went."""
    for i, word in enumerate(("tokens/s", "steps/s", "step p", "GPU", "batch", "graph", "cache", "gap p", "gaps:")):
        if word in name:
            return i, name
    return 99, name


def _values(r: RankFigures, name: str) -> npt.NDArray[np.float64]:
    """Values of the blocks. A rate or share that a block does not name was 0 in it; a length is not known there.

    Without any figure of its family (no stages, no gaps) nothing is known, and nothing is 0.
    """
    blocks = r.blocks.get(name)
    zero = name.endswith(("/s", "% of time"))
    if blocks is None:
        family = name.split(":")[0] if ":" in name else name.split(" ")[0] if name.startswith("stage") else "steps/s"
        known = zero and any(family in other for other in r.blocks)
        blocks = (0.0,) * max((len(v) for v in r.blocks.values()), default=0) if known else ()
    return np.array([0.0 if v is None else v for v in blocks if v is not None or zero], dtype=np.float64)


def _change(rank: str, name: str, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> Change:
    if not len(a) or not len(b):
        mean = float(a.mean()) if len(a) else float(b.mean()) if len(b) else None
        only = ONLY_A if len(a) else ONLY_B
        return Change(rank, name, mean if len(a) else None, None if len(a) else mean, None, None, only)
    ma, mb = float(a.mean()), float(b.mean())
    if min(len(a), len(b)) < MIN_BLOCKS:
        return Change(rank, name, ma, mb, None, None, UNSURE if _worth(name, ma, mb) else SAME)
    rng = np.random.default_rng(0)
    draws = rng.choice(b, (DRAWS, len(b))).mean(axis=1) - rng.choice(a, (DRAWS, len(a))).mean(axis=1)
    low, high = (float(x) for x in np.quantile(draws, (0.025, 0.975)))
    if name.endswith("ms"):  # read from bins: no two quantiles are told apart within a bin
        low, high = low - BIN * max(abs(ma), abs(mb)), high + BIN * max(abs(ma), abs(mb))
    if low <= 0.0 <= high:
        verdict = NOISE if _worth(name, ma, mb) else SAME
    else:
        verdict = CHANGED if _worth(name, ma, mb) else SAME
    return Change(rank, name, ma, mb, low, high, verdict)


def _worth(name: str, a: float, b: float) -> bool:
    if "%" in name:
        return abs(b - a) >= SMALL_POINTS
    return abs(b - a) > SMALL * max(abs(a), abs(b))


def _notes(a: Figures, b: Figures) -> Iterator[str]:
    for what, x, y in (
        ("model", a.server.model, b.server.model),
        ("SGLang", a.server.sglang_version, b.server.sglang_version),
        ("TP", a.server.tp, b.server.tp),
        ("device", a.server.device, b.server.device),
    ):
        if x != y:
            yield f"{what} differs: {x} and {y}"
    only = {r.rank for r in a.ranks} ^ {r.rank for r in b.ranks}
    if only:
        yield f"in one recording only: {', '.join(sorted(only))}"
    for name, f in (("A", a), ("B", b)):
        n = max((len(v) for r in f.ranks for v in r.blocks.values()), default=0)
        if n < MIN_BLOCKS:
            need = f"record {MIN_BLOCKS * BLOCK_S:.0f} s or more"
            yield f"{name} holds {n} blocks of {BLOCK_S:.0f} s: its noise is not known; {need}"
        if f.lost or f.damage:
            yield f"{name} has lost {sum(f.lost.values())} rows and {f.damage} parts"
    found_a, found_b = _findings(a), _findings(b)
    for name, own, other in (("B", found_b, found_a), ("A", found_a, found_b)):
        for found, title in own.items():
            if found not in other:
                yield f"finding only in {name}: {title}"


def _findings(f: Figures) -> dict[tuple[str, str | None], str]:
    """Titles, in the order in which they began; one that came several times is named once, as at its worst."""
    out: dict[tuple[str, str | None], AlertFigures] = {}
    for x in f.alerts:
        key = x.alert.id, x.alert.rank
        if key not in out or severity(x.alert) > severity(out[key].alert):
            out[key] = x
    return {key: x.title for key, x in out.items()}


HEAD = ("rank", "figure", "A", "B", "change", "95 % interval", "verdict")


def rows(changes: Sequence[Change]) -> list[tuple[Value, ...]]:
    """Changes as rows of a table."""
    return [
        (
            c.rank, c.figure, c.a, c.b,
            _change_text(c),
            "–" if c.low is None or c.high is None else f"{_signed(c.low)} … {_signed(c.high)}",
            c.verdict,
        )
        for c in changes
    ]  # fmt: skip


def _change_text(c: Change) -> str:
    if c.delta is None:
        return "–"
    relative = "" if c.share is None or "%" in c.figure else f" ({100 * c.share:+.1f} %)"
    return _signed(c.delta) + relative


def _signed(v: float) -> str:
    a = abs(v)
    digits = 0 if a >= 1000 else 1 if a >= 100 else 2 if a >= 1 else 3
    return f"{v:+.{digits}f}"


def text(d: Diff, everything: bool = False) -> str:
    """The comparison as text: what changed; with ``everything`` also what did not."""
    out = [
        f"A  {d.a.file}  {d.a.seconds:.1f} s",
        f"B  {d.b.file}  {d.b.seconds:.1f} s",
        *(f"note: {n}" for n in d.notes),
    ]
    shown = [c for c in d.changes if everything or c.verdict not in (SAME, NOISE)]
    if shown:
        out += ["", *grid(HEAD, rows(shown))]
    quiet = [c.verdict for c in d.changes if c not in shown]
    if quiet:
        out += [
            "",
            f"{len(quiet)} figures did not change: {quiet.count(SAME)} the same, {quiet.count(NOISE)} within noise "
            "(--all shows them).",
        ]
    if not shown and not quiet:
        out += ["", "Nothing can be compared: no rank is in both."]
    return "\n".join(out) + "\n"


def as_json(d: Diff) -> dict[str, object]:
    """The comparison for programs."""
    return {
        "diff": 1,
        "a": {"file": d.a.file, "seconds": d.a.seconds},
        "b": {"file": d.b.file, "seconds": d.b.seconds},
        "notes": list(d.notes),
        "changes": [
            {"rank": c.rank, "figure": c.figure, "a": c.a, "b": c.b, "delta": c.delta, "share": c.share,
             "low": c.low, "high": c.high, "verdict": c.verdict}
            for c in d.changes
        ],
    }  # fmt: skip
