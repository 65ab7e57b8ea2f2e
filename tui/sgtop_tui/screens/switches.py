"""What stands on the page that changes the server: switches, what turning one off costs, what the last flips did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sgtop_core.model.figures import Figures
from sgtop_core.model.switch_view import Flip

from .. import fmt
from ..lines import EMPTY, Line, wrap

GRAPHS = ("cuda-graph-decode", "cuda-graph-prefill")
RADIX = ("radix-cache",)
FOR_S = 60.0
MEANS = {
    "cuda-graph-decode": "decode steps run eager instead of replaying a CUDA graph",
    "cuda-graph-prefill": "prefill runs eager instead of replaying a CUDA graph",
    "radix-cache": "every prompt is computed in full; the cache stays and is warm when it is back",
}
ACTIONS = {
    "flush-cache": "empty the radix cache; only an idle server does it, and what it held is gone",
    "freeze-gc": "take the Python heap out of the collector's sight; cannot be undone",
    "pin": "let each scheduler run on the CPUs near its GPU only; undone when sgtop leaves",
    "undo": "undo what sgtop pinned",
}


def seconds_left(left_s: float | None) -> str:
    """``42 s`` or ``kept``."""
    return "kept until sgtop leaves" if left_s is None else f"back in {left_s:.0f} s"


def switch_lines(
    rows: Sequence[Mapping[str, Any]], chosen: int, plan: Mapping[str, Any] | None, width: int
) -> list[Line]:
    """The switches of a page; ``plan`` of the chosen one, where it is on and available."""
    out: list[Line] = []
    for i, row in enumerate(rows):
        mark = "▸ " if i == chosen else "  "
        state = str(row["state"]) if row["available"] else "not available"
        style = "warn" if row["wanted"] == "off" else "dim" if not row["available"] else "strong"
        out.append(((mark, "key.changes"), (f"{row['name']:<20}", style), (state, style)))
        text = str(row["reason"]) if not row["available"] else MEANS[str(row["name"])]
        if row["wanted"] == "off":
            text = f"{seconds_left(row['left_s'])}; turned off by {row['owner'] or 'another sgtop'}"
        out += [(("    ", ""), (piece, "dim")) for piece in wrap(text, width - 4)]
    if not rows:
        return out
    row = rows[chosen]
    out.append(EMPTY)
    if row["wanted"] == "off":
        out.append((("  b", "key.changes"), (" back on now   ", ""), ("k", "key.changes"), (" keep it off", "")))
    elif row["available"]:
        refuse = str(plan.get("refuse", "")) if plan else ""
        cost = str(plan.get("text", "")) if plan else "asking what it costs …"
        out += [(("  ", ""), (piece, "crit" if refuse else "")) for piece in wrap(refuse or f"cost: {cost}", width - 2)]
        if plan and not refuse:
            out.append(EMPTY)
            out.append(
                (("  y", "key.changes"), (f" turn it off on all ranks for {FOR_S:.0f} s, then back by itself", ""))
            )
    return out


def action_lines(chosen: int, armed: bool, width: int) -> list[Line]:
    """The actions; ``armed``: the chosen one waits for its y."""
    out: list[Line] = []
    for i, (name, text) in enumerate(ACTIONS.items()):
        mark = "▸ " if i == chosen else "  "
        out.append(((mark, "key.changes"), (f"{name:<14}", "strong" if i == chosen else "")))
        out += [(("    ", ""), (piece, "dim")) for piece in wrap(text, width - 4)]
    out.append(EMPTY)
    if armed:
        out.append((("  y", "key.changes"), (" do it", "")))
    else:
        out.append((("  ↑ ↓", "key"), (" choose, ", "dim"), ("enter", "key"), (" then ", "dim"), ("y", "key.changes")))
    return out


def flip_lines(flips: Sequence[Flip], width: int) -> list[Line]:
    """What the latest flips did: a line before, a line after."""
    out: list[Line] = []
    for flip in reversed(flips[-3:]):
        out.append(((f"{flip.switch} {flip.to} since step {flip.step}", "accent"),))
        for name, figures in (("before", flip.before), ("after", flip.after)):
            out.append((("  ", ""), (f"{name:<8}", "dim"), (_figures(figures), "")))
    return out


def summary(flip: Flip) -> str:
    """A flip in one sentence."""
    return f"{flip.switch} {flip.to}: {_figures(flip.before)} → {_figures(flip.after)}"


def _figures(f: Figures) -> str:
    if f.steps == 0:
        return "no steps"
    parts = [
        f"step {fmt.ms(f.step_ms)}" if f.step_ms is not None else "",
        f"{fmt.count(round(f.tokens_per_s))} tok/s" if f.tokens_per_s is not None else "",
        f"gap {fmt.ms(f.gap_ms)}" if f.gap_ms is not None else "",
        f"hits {fmt.percent(f.hit_ratio)}" if f.hit_ratio is not None else "",
    ]
    return ", ".join(p for p in parts if p)
