"""The first line: which server, how attached, what sgtop costs, whether it is live. And the banner below it.

The line gives up its least telling parts first when the terminal is narrow; state and server always stay.
"""

from __future__ import annotations

from sgtop_core.model.snapshot import Server

from .. import fmt
from ..glyphs import STATES
from ..lines import Line, Part, Pen, clip, fit, line_width, wrap
from ..look import Look


def parallelism(server: Server) -> str:
    """``TP2``, ``TP8 DP2``; sizes of one are left out, ``1 GPU rank`` is not worth a word."""
    sizes = (("TP", server.tp), ("PP", server.pp), ("DP", server.dp), ("EP", server.ep))
    return " ".join(f"{name}{n}" for name, n in sizes if n is not None and n > 1) or ("TP1" if server.tp else "")


def short_model(model: str | None) -> str:
    """The last part of a path or of ``owner/name``."""
    return model.rstrip("/").rsplit("/", 1)[-1] if model else fmt.UNKNOWN


def address(server: Server) -> str:
    """``:30000``, with the host where it is not this machine."""
    host = "" if server.host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "") else server.host
    if server.port is None:
        return f"pid {server.pid}" if server.pid else host or fmt.UNKNOWN
    return f"{host}:{server.port}"


def state_parts(look: Look) -> Line:
    """Glyph and word of the connection's state; FROZEN instead while the screen stands still."""
    if look.choices.frozen_s is not None:
        return ((f" FROZEN {fmt.seconds(look.choices.frozen_s)} ", "badge"),)
    glyph, style = STATES.get(look.state, ("?", "warn"))
    return ((f"{glyph} {look.state}", style),)


def flipped(look: Look) -> Line:
    """Switches that are away from what the server was started with, each with its countdown."""
    out: list[Part] = []
    for name in dict.fromkeys(s.name for g in look.snap.switches for s in g.switches if s.wanted == "off"):
        mine = [s for g in look.snap.switches for s in g.switches if s.name == name and s.wanted == "off"]
        left = mine[0].left_s
        text = "kept" if left is None else f"{left:.0f} s"
        pending = " pending" if any(s.state == "pending" for s in mine) else ""
        out.append((f" {name} OFF{pending} {text} ", "key.changes"))
    return tuple(out)


def header(look: Look, width: int) -> Line:
    """The first line."""
    snap = look.snap
    server, over = snap.server, snap.overhead
    lost = sum(snap.lost.values())
    state = state_parts(look)
    # (how dear the part is, the part): the dearest stay longest.
    left: list[tuple[int, Part]] = [
        (0, ("sgtop", "title")),
        (0, (address(server), "accent")),
        (2, (clip(short_model(server.model), max(12, width // 4)), "strong")),
        (3, (parallelism(server), "")),
        (6, (f"SGLang {server.sglang_version}" if server.sglang_version else "", "dim")),
        (9, (server.device or "", "dim")),
        (10, (f"pid {server.pid}" if server.pid and server.port is not None else "", "dim")),
    ]
    right: list[tuple[int, Part]] = [
        *((0, part) for part in flipped(look)),
        (1, ("READ-ONLY" if look.choices.readonly else "", "warn")),
        (1, ("REC" if look.choices.recording else "", "warn")),
        (1, (f"lost {fmt.count(lost)} rows" if lost else "", "warn")),
        (8, (f"hooks {fmt.ms(over.hook_us_p50 / 1e3)}/step" if over.hook_us_p50 is not None else "", "dim")),
        (7, (f"sgtop {fmt.percent(over.client_cpu_share)} cpu" if over.client_cpu_share is not None else "", "dim")),
        (5, (snap.attach.way or "", "dim")),
        (4, (f"cost {fmt.percent(look.cost_share)}", "dim")),
        (0, state[0]),
    ]
    for limit in range(10, -1, -1):
        lefts = [part for rank, part in left if rank <= limit and part[0]]
        rights = [part for rank, part in right if rank <= limit and part[0]]
        need = sum(line_width((p,)) + 2 for p in lefts + rights)
        if need <= width or limit == 0:
            break
    pen = Pen()
    for part in lefts:
        pen.put(*part).gap(2)
    tail: list[Part] = []
    for part in rights:
        tail += [("  ", ""), part]
    pen.gap(width - pen.width - line_width(tuple(tail)))
    for part in tail:
        pen.put(*part)
    return fit(pen.line(), width)


_HEADS = {
    "connecting": "attaching",
    "starting": "the server is starting",
    "lost": "connection lost, attaching again",
    "waiting": "the server is gone, waiting for it",
    "hung": "the scheduler hangs",
    "agentless": "without the agent: less, from outside only",
}


def banner(look: Look, width: int, most: int = 2) -> list[Line]:
    """At most ``most`` lines when the connection is not live: what is the matter, in words. Else none."""
    head = _HEADS.get(look.state)
    if head is None:
        return []
    glyph, style = STATES[look.state]
    message = look.snap.attach.message
    if not message:
        return [fit(((f" {glyph} {head}", style),), width)]
    # A message that says it all by itself is not introduced.
    first = f" {glyph} " if message.startswith(head.split(",")[0]) else f" {glyph} {head}: "
    pieces = wrap(message, width - 4, first=line_width(((first, ""),)) - 3)
    out: list[Line] = [fit(((first, style), (pieces[0], style)), width)]
    for i, piece in enumerate(pieces[1:most]):
        text = piece if i < most - 2 else clip(" ".join(pieces[i + 1 :]), width - 4)
        out.append(fit((("   ", ""), (text, style)), width))
    return out


def cramped(look: Look, width: int) -> Line:
    """The first line of a tiny terminal: address, model, state."""
    server = look.snap.server
    state = (*flipped(look), *state_parts(look))
    pen = Pen().put(address(server), "accent").gap(1)
    room = width - pen.width - line_width(state) - 1
    pen.put(clip(f"{short_model(server.model)} {parallelism(server)}", max(0, room)), "strong")
    pen.right(state, width)
    return fit(pen.line(), width)
