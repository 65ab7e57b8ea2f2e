"""The tiny screen: one line a rank and the worst finding, for 40 × 10 and less."""

from __future__ import annotations

from sgtop_core.model.snapshot import Rank

from .. import fmt
from ..glyphs import MODES, STATES, mode_glyph
from ..lines import Line, Pen
from ..look import DECODE_MODES, Look, step_p
from . import findings, header


def rank_line(rank: Rank, width: int, label: int) -> Line:
    """``TP0 e  step 24 61  run 67 wait 4  kv 83%``, as much as fits."""
    glyph, style = STATES.get(rank.state, ("?", "warn"))
    pen = Pen().cell(rank.rank, label, "strong", left=True).gap(1)
    if rank.state != "live" and not rank.modes:
        pen.put(f"{glyph} {rank.message or rank.state}", style)
        return pen.line()
    cell = rank.strip[-1] if rank.strip else None
    mode = mode_glyph(cell.mode, cell.eager) if cell is not None else None
    pen.put(mode.letter if mode else glyph, mode.style if mode else style)
    name = next((MODES[m].word for m in DECODE_MODES if m in rank.modes and rank.modes[m].steps), "step")
    parts: list[Line] = [
        ((f" {name} ", "dim"), (fmt.ms_pair(step_p(rank, "p50"), step_p(rank, "p99")), "figure")),
        ((" wait ", "dim"), (fmt.count(rank.queue.waiting), "figure")),
        ((" run ", "dim"), (fmt.count(rank.queue.running), "figure")),
        ((" kv ", "dim"), (fmt.percent(rank.kv_usage), "figure")),
    ]
    for part in parts:
        if pen.width + sum(len(t) for t, _ in part) > width:
            break
        for text, part_style in part:
            pen.put(text, part_style)
    return pen.line()


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Header, the banner's words where there is one, ranks, the worst finding."""
    out = [header.cramped(look, width)]
    out += header.banner(look, width, most=3 if height >= 8 else 1)[: max(1, height // 3)]
    # The rank in trouble comes first: it must not be the one that has no line.
    ranks = sorted(look.ranks, key=lambda rank: rank is not look.focus) if look.choices.sort == "rank" else look.ranks
    alert = findings.worst(look)
    below = 1 if alert is None else min(max(2, len(findings.tiny(look, width, height))), max(2, height // 2))
    room = max(1, height - len(out) - below)
    name = max((len(r.rank) for r in ranks), default=3)
    shown = ranks if len(ranks) <= room else ranks[: max(1, room - 1)]
    out += [rank_line(rank, width, name) for rank in shown]
    if len(shown) < len(ranks):
        out.append(((f"+{fmt.counted(len(ranks) - len(shown), 'rank')}", "dim"),))
    left = height - len(out)
    if left > 0:
        out += findings.tiny(look, width, left)
    return out[:height]
