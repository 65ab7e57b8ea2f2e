"""What stands on the pages: pure text from the keys, the glossary and the look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..glossary import BY_NAME, TERMS, Term, reasons
from ..glyphs import MODES, SEVERITIES, STATES
from ..keys import GROUPS, KEYS, PLAYER
from ..lines import EMPTY, Line, flow, wrap
from ..look import Look
from ..panels import BY_KEY, PANELS

WIDTH = 96


def _paragraph(text: str, style: str = "", indent: int = 2, head: str = "", width: int = WIDTH) -> list[Line]:
    out: list[Line] = []
    for i, piece in enumerate(wrap(text, width - indent, first=len(head) if head else 0)):
        if i == 0 and head:
            out.append(((" " * indent, ""), (head, "dim"), (piece, style)))
        else:
            out.append(((" " * indent, ""), (piece, style)))
    return out


def help_lines(width: int = WIDTH) -> list[Line]:
    """Keys, panels, glyphs."""
    out: list[Line] = []
    for group, title in GROUPS.items():
        out.append(((title, "title"),))
        for key in KEYS:
            if key.group == group:
                style = "key.changes" if key.changes else "key"
                out += (
                    _paragraph(key.help, indent=2, width=width, head=f"{key.shown:<8}")
                    if width < 60
                    else [(("  ", ""), (f"{key.shown:<8}", style), (key.help, ""))]
                )
        out.append(EMPTY)
        if group == "look":
            # In few lines and near the top: a replay's bar has room for them on wide terminals only.
            out += [*_player_lines(width), EMPTY]
    out.append((("Panels", "title"), ("  the digit makes it large, esc brings the others back", "dim")))
    for panel in PANELS:
        number = str(panel.number) if panel.number is not None else " "
        out.append((("  ", ""), (f"{number:<8}", "key"), (panel.title, "")))
    out.append(((" " * 10, ""), ("panels without a digit: ctrl+p, then their name", "dim")))
    out += [EMPTY, (("Letters of the mode strip", "title"),)]
    for glyph in dict.fromkeys(MODES.values()):
        out.append((("  ", ""), (glyph.letter, glyph.style), (f"       {glyph.word}", "")))
    out += [EMPTY, (("State", "title"),)]
    for state, (mark, style) in STATES.items():
        out.append((("  ", ""), (mark, style), (f"       {state}", "")))
    out += [EMPTY, (("Findings", "title"),)]
    meaning = {"critical": "hurts users now", "warning": "will or may hurt", "info": "good to know"}
    for severity, (mark, style) in SEVERITIES.items():
        out.append((("  ", ""), (mark, style), (f"       {severity}: {meaning[severity]}", "")))
    return out


def _player_lines(width: int) -> list[Line]:
    groups: list[Line] = [((key.shown, "key"), (f" {key.label}", "")) for key in PLAYER]
    head: Line = (("Replay", "title"), ("  with sgtop replay and sgtop demo", "dim"))
    return [head, *flow(groups, width, between=3, indent=2)]


def where_lines(reply: Mapping[str, Any]) -> list[Line]:
    """An agent's answer to ``where``: the main thread's Python frames, innermost first."""
    if not reply.get("ok"):
        return [((str(reply.get("error") or "no answer"), "warn"),)]
    result = reply.get("result")
    if not isinstance(result, Mapping):
        return [((piece, ""),) for piece in str(result).splitlines()] or [EMPTY]
    stack = result.get("stack")
    out: list[Line] = []
    for i, frame in enumerate(stack if isinstance(stack, list) else []):
        out.append((("in    " if i == 0 else "from  ", "dim"), (str(frame), "strong" if i == 0 else "")))
    if result.get("ct") is not None:
        out += [EMPTY, (("at step ", "dim"), (str(result["ct"]), ""))]
    return out or [(("no Python frame", "dim"),)]


def _term(term: Term, width: int) -> list[Line]:
    out: list[Line] = [((term.name, "accent"),)]
    out += _paragraph(term.means, width=width)
    out += _paragraph(term.measured, "dim", head="measured: ", width=width)
    if term.unknown:
        out += _paragraph(term.unknown, "dim", head="– means: ", width=width)
    return [*out, EMPTY]


def _ordered(keys: Iterable[str]) -> list[Term]:
    names = dict.fromkeys(name for key in keys for name in BY_KEY[key].terms)
    first = [BY_NAME[name] for name in names if name in BY_NAME]
    return first + [term for term in TERMS if term not in first]


def explain_lines(look: Look, on_screen: Iterable[str], width: int = WIDTH) -> list[Line]:
    """Why figures are – now, findings in full, then every term, those of the panels on the screen first."""
    out: list[Line] = []
    why = reasons(look.snap)
    if why:
        out.append((("Why some figures are –", "title"),))
        for text in why:
            out += _paragraph(text, width=width)
        out.append(EMPTY)
    for alert in look.alerts:
        glyph, style = SEVERITIES.get(alert.severity, ("·", "dim"))
        out.append(((f"{glyph} {alert.title}", style),))
        out += _paragraph(alert.evidence, width=width)
        if alert.next:
            out += _paragraph(alert.next, "command", head="→ ", width=width)
        out.append(EMPTY)
    keys = [key for key in on_screen if key in BY_KEY]
    for term in _ordered(keys):
        out += _term(term, width)
    return out
