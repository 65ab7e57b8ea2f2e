"""Findings: one sentence each, its evidence, and a line after → that can be pasted."""

from __future__ import annotations

from sgtop_core.model.snapshot import Alert

from .. import fmt
from ..glyphs import SEVERITIES
from ..lines import EMPTY, Line, Pen, clip, wrap
from ..look import Look
from .base import Panel, filter_note


def finding(look: Look, alert: Alert, width: int, evidence: bool) -> list[Line]:
    """The lines of one finding."""
    glyph, style = SEVERITIES.get(alert.severity, ("·", "dim"))
    if not alert.active:
        glyph, style = "·", "dim"
    age = fmt.seconds(max(0.0, look.snap.time - alert.since))
    last = f", last {fmt.seconds(alert.quiet_s)} ago" if alert.quiet_s >= 0.5 else ""
    tail = f" {age}{last}" if alert.active else f" ended, began {age} ago"
    where = f"{alert.rank}: " if alert.rank and not alert.title.startswith(alert.rank) else ""
    title_style = style if style == "crit" else "dim" if not alert.active else "strong"
    out: list[Line] = []
    pieces = wrap(where + alert.title, max(8, width - 4 - len(tail)))
    for i, piece in enumerate(pieces):
        pen = Pen(1).put(f"{glyph} " if i == 0 else "  ", style).put(piece, title_style)
        if i == 0:
            pen.right(((tail, "dim"),), width - 1)
        out.append(pen.line())
    if evidence and alert.evidence:
        out += [((" " * 3, ""), (piece, "dim")) for piece in wrap(alert.evidence, width - 5)]
    if alert.next and alert.active:
        # Long commands are broken, never cut: `y` copies them whole.
        for i, piece in enumerate(wrap(alert.next, width - 7)):
            out.append(((" " * 3, ""), ("→ " if i == 0 else "  ", "key"), (piece, "command")))
    return out


def calm(look: Look) -> Line:
    """The line when there is no finding: never more reassuring than what is known."""
    if look.state in ("hung", "lost", "waiting", "connecting", "starting"):
        return ((" –  ", "dim"), ("nothing can be found now", "dim"))
    if look.agentless:
        return ((" –  ", "dim"), ("nothing found from outside", "dim"))
    if not any(r.modes for r in look.snap.ranks):
        return ((" ✓  ", "good"), ("nothing found (no traffic)", "dim"))
    return ((" ✓  ", "good"), ("nothing found", "dim"))


def draw(look: Look, width: int, height: int) -> list[Line]:
    """As many findings as fit, the worst first; evidence where there is room for all."""
    alerts = look.alerts
    if not alerts:
        return [calm(look)][:height]
    blocks = [finding(look, a, width, evidence=False) for a in alerts]
    left = height - sum(map(len, blocks))
    for i, alert in enumerate(alerts):
        full = finding(look, alert, width, evidence=True)
        if len(full) - len(blocks[i]) <= left:
            left -= len(full) - len(blocks[i])
            blocks[i] = full
    if left >= len(blocks) - 1:
        blocks = [[*block, EMPTY] if i < len(blocks) - 1 else block for i, block in enumerate(blocks)]
    out: list[Line] = []
    hidden = 0
    for i, block in enumerate(blocks):
        more = len(blocks) - i - 1
        need = len(block) + (1 if more and len(out) + len(block) >= height else 0)
        if hidden or (out and len(out) + need > height):
            hidden += 1
        else:
            out += block
    out = out[:height]
    if hidden:
        line: Line = ((f"   +{hidden} more: 9 shows all", "dim"),)
        out = [*out[: height - 1], line]
    return out


def _note(look: Look) -> str:
    active = sum(a.active for a in look.snap.alerts)
    said = filter_note(look, (f"{a.rank} {a.title} {a.evidence}" for a in look.snap.alerts))
    note = f"{active} now · y copies → · e explains" if active else "e explains"
    return f"{said} · {note}" if said else note


def _ideal(look: Look, width: int) -> int:
    return max(1, sum(len(finding(look, a, width, evidence=True)) for a in look.alerts))


def _least(look: Look, width: int) -> int:
    # The worst finding always has its whole text; a second one at least where there is room.
    sizes = [len(finding(look, a, width, evidence=False)) for a in look.alerts]
    return max(1, sum(sizes[:1]) + (1 if len(sizes) > 1 else 0))


PANEL = Panel(
    key="findings",
    title="findings",
    number=9,
    row=90,
    priority=1,
    draw=draw,
    ideal=_ideal,
    least=_least,
    min_width=40,
    stretch=True,
    weight=1.5,
    note=_note,
    terms=("finding", "latched"),
)


def worst(look: Look) -> Alert | None:
    """The finding that a tiny terminal shows."""
    return look.alerts[0] if look.alerts else None


def tiny(look: Look, width: int, height: int) -> list[Line]:
    """The worst finding in at most ``height`` lines; its → line always stays."""
    alert = worst(look)
    if alert is None:
        return [calm(look)][:height]
    lines = finding(look, alert, width, evidence=False)
    if len(lines) > height and height >= 2:
        glyph, style = SEVERITIES.get(alert.severity, ("·", "dim"))
        first: Line = ((f" {glyph} ", style), (clip(alert.title, width - 4), style))
        command = [line for line in lines if any(s == "command" for _, s in line)]
        lines = [first, *command]
    return lines[:height]
