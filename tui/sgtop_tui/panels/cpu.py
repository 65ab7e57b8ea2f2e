"""CPU contention: a row a rank, and who took the CPU from its scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from sgtop_core.model.snapshot import Cpu, Culprit, Rank

from .. import fmt
from ..lines import Line, Part, Pen, clip
from ..look import Look
from .base import Panel, rank_filter_note, words

BADLY = 0.05
"""Share of the window spent waiting for a CPU above which the figure is marked."""

ANOTHER = "another-sgtop"
"""Kind of a culprit that is an sgtop, and not this one."""

NARROW = 100
"""Cells. A terminal below this width has no room for every panel."""
TOO_MUCH = 1000
"""Lines that no terminal has."""

LEVELS = {
    "A": "every switch, who ran",
    "B": "every switch of the CPUs, who ran",
    "C": "switches of own threads, not who",
    "D": "sums from /proc, suspects only",
}


def cpus(numbers: Sequence[int]) -> str:
    """A list of CPUs as the kernel writes it: ``0-3,8``."""
    out: list[str] = []
    i = 0
    while i < len(numbers):
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] == numbers[j] + 1:
            j += 1
        out.append(str(numbers[i]) if i == j else f"{numbers[i]}-{numbers[j]}")
        i = j + 1
    return ",".join(out)


def _name(c: Culprit, own: int | None) -> str:
    if c.pid == own:
        return "its own threads"
    name = "another sgtop" if c.kind == ANOTHER else c.comm
    pid = f" ({c.pid}{', ended' if c.ended else ''})" if c.pid > 0 else ""
    return f"{'' if c.certain else '~'}{name}{pid}"


def culprit(c: Culprit, own: int | None = None) -> str:
    """``dockerd (812) 187× 410 ms``; a suspect has a ``~``, as only its CPU time is known. ``own``: the rank's pid."""
    times = f" {fmt.count(c.count)}×" if c.count else ""
    return f"{_name(c, own)}{times} {fmt.ms(c.ms)}"


def _badges(c: Cpu) -> list[Part]:
    out: list[Part] = []
    if c.throttled_ms:
        periods = f" in {fmt.count(c.nr_throttled)} periods" if c.nr_throttled else ""
        out.append((f"throttled {fmt.ms(c.throttled_ms)}{periods}", "warn"))
    if c.numa_ok is False and c.place is not None:
        out.append((f"NUMA {c.place.node}, its GPU {c.place.gpu_node}", "warn"))
    return out


def row(rank: Rank, look: Look, width: int, named: bool = False) -> Line:
    """One rank. ``named``: with who took its CPU most, as there is no line of its own for that."""
    name = max((len(r.rank) for r in look.ranks), default=4)
    pen = Pen(1).cell(rank.rank, name, left=True).gap(1)
    c = rank.cpu
    if c is None:
        return pen.put("no scheduling samples", "dim").line()
    covered = _seen_s(c, look)
    place = c.place
    if place is not None and place.cpu is not None:
        pen.put("cpu ", "dim").put(f"{place.cpu}", "figure")
        if place.allowed_cpus == (place.cpu,):
            pen.put(" only", "dim")
        elif place.allowed_cpus and place.allowed_cpus != place.host_cpus:
            pen.put(f" of {cpus(place.allowed_cpus)}", "dim")
        pen.gap(2)
    per_s = None if c.wait_ms is None else c.wait_ms / covered
    bad = per_s is not None and per_s / 1000 > BADLY
    groups: list[list[Part]] = [
        [("wait ", "dim"), (f"{fmt.ms(per_s)}/s" if per_s is not None else fmt.UNKNOWN, "warn" if bad else "figure")],
        [
            ("preempted ", "dim"),
            (f"{fmt.per_s(c.preemptions / covered)}/s" if c.preemptions is not None else fmt.UNKNOWN, "figure"),
        ],
        *([("by ", "dim"), (_name(x, rank.pid), "")] for x in _worth(c)[: 1 if named else 0]),
        *([badge] for badge in _badges(c)),
        [("longest ", "dim"), (fmt.ms(c.longest_ms), "figure")],
        [("moved ", "dim"), (f"{fmt.count(c.migrations)}×" if c.migrations is not None else fmt.UNKNOWN, "figure")],
    ]
    if place is not None:
        if place.mhz is not None:
            groups.append([(f"{place.mhz / 1000:.1f} GHz {place.governor or ''}".rstrip(), "dim")])
        if place.threads is not None:
            groups.append([(fmt.counted(place.threads, "thread"), "dim")])
    for group in groups:
        if not pen.add([*group, ("  ", "")], width):
            break
    return pen.line()


def _worth(c: Cpu) -> list[Culprit]:
    return [x for x in c.culprits if x.ms >= 0.05]


def _who(c: Cpu, own: int | None, indent: int, width: int) -> Line | None:
    worth = _worth(c)
    if not worth:
        return None
    pen = Pen(indent).put("by ", "dim")
    for i, one in enumerate(worth):
        text = ("" if i == 0 else ", ") + culprit(one, own)
        if pen.width + len(text) > width:
            if i == 0:
                pen.put(clip(text, width - pen.width))
            break
        pen.put(text, "" if one.kind in ("other", ANOTHER) else "dim")
    return pen.line()


def _culprits(look: Look, width: int) -> list[Line | None]:
    name = max((len(r.rank) for r in look.ranks), default=4)
    return [_who(r.cpu, r.pid, name + 2, width) if r.cpu is not None else None for r in look.ranks]


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Rows; the culprits below each as far as there is room, the worst rank's first."""
    ranks = look.ranks
    if not ranks:
        return words("no rank seen yet", width)[:height]
    below = _culprits(look, width)
    worst_first = sorted((i for i, line in enumerate(below) if line is not None), key=lambda i: -_wait(ranks[i]))
    told = set(worst_first[: max(0, height - len(ranks))])
    out: list[Line] = []
    for i, rank in enumerate(ranks):
        out.append(row(rank, look, width, named=i not in told))
        line = below[i]
        if i in told and line is not None:
            out.append(line)
    missing = next((r.cpu.message for r in ranks if r.cpu is not None and r.cpu.message), "")
    if missing and len(out) < height:
        out += words(missing, width)
    return out[:height]


def _wait(rank: Rank) -> float:
    return (rank.cpu.wait_ms or 0.0) if rank.cpu is not None else 0.0


def _ideal(look: Look, width: int) -> int:
    told = sum(line is not None for line in _culprits(look, width))
    return max(1, min(16, len(look.ranks) + told))


def _least(look: Look, width: int) -> int:
    if width < NARROW and not any(_troubled(r, look) for r in look.ranks):
        return TOO_MUCH  # where there is room for either, a calm CPU gives way to the rows of the ranks
    return max(1, min(2, len(look.ranks)))


def _seen_s(c: Cpu, look: Look) -> float:
    """Seconds that the sums are of, for rates. Of a moment nothing is known."""
    return max(look.snap.covered_s if c.seen_s is None else c.seen_s, 0.1)


def _troubled(rank: Rank, look: Look) -> bool:
    c = rank.cpu
    return c is not None and (
        _wait(rank) > BADLY * 1e3 * _seen_s(c, look) or bool(c.throttled_ms) or c.numa_ok is False
    )


def _shown(look: Look) -> bool:
    return any(r.cpu is not None for r in look.ranks) or look.choices.maximised == "cpu"


def _note(look: Look) -> str:
    levels = sorted({r.cpu.level for r in look.ranks if r.cpu is not None})
    said = [f"level {level}: {LEVELS.get(level, level)}" for level in levels]
    filtered = rank_filter_note(look)
    return " · ".join([*([filtered] if filtered else []), *said, look.window])


PANEL = Panel(
    key="cpu",
    title="CPU",
    number=6,
    row=42,
    priority=5,
    draw=draw,
    ideal=_ideal,
    least=_least,
    most=24,
    min_width=56,
    shown=_shown,
    note=_note,
    terms=("cpu wait", "preempted", "level", "throttled", "NUMA"),
)
