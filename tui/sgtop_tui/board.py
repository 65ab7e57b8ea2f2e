"""The board: which panels stand where on a screen of a given size, and their lines. Pure: no Textual, no terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from . import keys
from .lines import Line, fit
from .look import Look
from .panels import BY_KEY, PANELS, Panel, header, tiny
from .panels.base import title_line
from .plan import Rect, Want, plan

TINY_WIDTH, TINY_HEIGHT = 64, 17
"""Below this, one line a rank and the worst finding is all that fits."""
CHROME = frozenset({"header", "banner", "footer", "tiny"})
"""What is no panel."""


def wants(look: Look, width: int, height: int) -> list[Want]:
    """What the panels would like on a terminal of this size."""
    out: list[Want] = []
    for panel in PANELS:
        if width < panel.from_width or height < panel.from_height or not panel.shown(look):
            continue
        # Height depends a little on width; most panels have half the terminal or all of it.
        likely = width if panel.min_width * 2 > width else width // 2
        least = panel.least(look, likely)
        out.append(
            Want(
                key=panel.key,
                row=panel.row,
                priority=panel.priority,
                min_width=panel.min_width,
                min_height=least + 1,
                ideal_height=max(least, panel.ideal(look, likely)) + 1,
                most_height=panel.most + 1 if panel.most else 0,
                weight=panel.weight,
                stretch=panel.stretch,
            )
        )
    return out


def arrange(look: Look, width: int, height: int) -> dict[str, Rect]:
    """Every rectangle of the screen: header, banner, panels, footer; or the tiny screen."""
    if width < TINY_WIDTH or height < TINY_HEIGHT:
        return {"tiny": Rect(0, 0, width, height)}
    out = {"header": Rect(0, 0, width, 1), "footer": Rect(0, height - 1, width, 1)}
    top = 1
    lines = len(header.banner(look, width))
    if lines:
        out["banner"] = Rect(0, 1, width, lines)
        top += lines
    area = Rect(0, top, width, height - 1 - top)
    if look.choices.maximised in BY_KEY:
        out[look.choices.maximised] = area
    else:
        out |= plan(wants(look, width, height), area)
    return out


def draw(key: str, rects: Mapping[str, Rect], look: Look) -> list[Line]:
    """The lines of one rectangle, exactly as wide and as many as it has room for.

    A panel that fails says so in its own place and the others go on; ``SGTOP_DEBUG=1`` lets the error through.
    """
    rect = rects[key]
    try:
        lines = _lines(key, rect, rects, look)
    except Exception as error:
        if os.environ.get("SGTOP_DEBUG"):
            raise
        what = f" {key}: sgtop could not draw this ({type(error).__name__}: {error}); SGTOP_DEBUG=1 shows where"
        lines = [((what, "warn"),)]
    out = [fit(line, rect.width) for line in lines[: rect.height]]
    return out + [fit((), rect.width)] * (rect.height - len(out))


def _lines(key: str, rect: Rect, rects: Mapping[str, Rect], look: Look) -> Sequence[Line]:
    if key == "header":
        return [header.header(look, rect.width)]
    if key == "banner":
        return header.banner(look, rect.width)
    if key == "footer":
        return [keys.footer(rect.width, look.snap.window_s, look.choices.readonly)]
    if key == "tiny":
        return tiny.draw(look, rect.width, rect.height)
    return _panel(BY_KEY[key], rect, rects, look)


def _panel(panel: Panel, rect: Rect, rects: Mapping[str, Rect], look: Look) -> list[Line]:
    """Title, lines and the divider to a right-hand neighbour."""
    edge = rect.x + rect.width
    right = max(r.x + r.width for r in rects.values())
    divided = any(r.x == edge and r.y == rect.y for r in rects.values())
    joints = tuple(
        r.x + r.width - 1 - rect.x
        for r in rects.values()
        if r.y + r.height == rect.y and r.x + r.width < right and rect.x <= r.x + r.width - 1 < edge
    )
    inner = rect.width - 1 if divided else rect.width
    out = [title_line(panel, look, rect.width, joints, divided)]
    height = rect.height - 1
    lines = panel.draw(look, inner, height)[:height]
    if not divided:
        return out + lines
    lines += [()] * (height - len(lines))
    return out + [(*fit(line, inner), ("│", "rule")) for line in lines]
