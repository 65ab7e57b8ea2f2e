"""What a rank says of its switches: who flipped what, what cannot be switched and why, where every rank is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import known, protocol
from .page import I_WORD
from .rank import RankSwitches


class Flip:
    """A switch that somebody wants away from where the server was started."""

    __slots__ = ("asked", "bit", "name", "owner", "retracted", "step", "until", "who")

    def __init__(self, name: str, owner: int, who: str, asked: int, until: int | None, retracted: int) -> None:
        self.name, self.bit, self.owner, self.who = name, known.BITS[name], owner, who
        self.asked, self.until, self.retracted = asked, until, retracted
        self.step: int | None = None
        """the first step that runs with it, once the leader has stored it"""


def no_group(hooks: Any) -> str:
    """Why nothing can be switched on this server; empty: it can."""
    if hooks is None or "boundary" not in hooks.caps:
        return "the agent has no step boundary here"
    return known.no_group(hooks.scheduler, hooks.found.loop)


def reasons(hooks: Any, rank: RankSwitches | None) -> dict[str, str]:
    """Switch → why not; an empty text: it can be switched."""
    no = no_group(hooks)
    if no:
        return dict.fromkeys(known.BITS, no)
    graphs = known.graphs(hooks.scheduler)
    flipped = rank is not None and bool(rank.flags.state & known.RADIX)
    return {
        "cuda-graph-decode": graphs.no_decode,
        "cuda-graph-prefill": graphs.no_prefill,
        # while it is flipped the flag reads true: that is our own doing
        "radix-cache": "" if flipped else known.no_radix(hooks.scheduler) or _environment(),
    }


def _environment() -> str:
    flag = known.force_miss()
    try:
        return "SGLANG_RADIX_FORCE_MISS is set in the server's environment: it is off already" if flag.get() else ""
    except Exception as error:
        return f"SGLANG_RADIX_FORCE_MISS cannot be read: {type(error).__name__}"


def _step(flip: Flip | None, after: int, n: int) -> int | None:
    """The first step that runs with it: of the word, where the agent's clock has not noticed the leader's store yet."""
    if flip is None or not after & flip.bit:
        return None
    return flip.step if flip.step is not None else n + 1


def frame(
    now: int,
    own: int,
    size: int,
    ct: int,
    rank: RankSwitches | None,
    flips: Mapping[str, Flip],
    why_not: Mapping[str, str],
    whys: Mapping[str, str],
) -> dict[str, Any]:
    """The ``switch`` frame of ``wire.SWITCH``."""
    word = rank.page.words[I_WORD] if rank is not None else 0
    after, before, n = protocol.unpack(word)
    slots = rank.page.slots() if rank is not None else []
    applied = rank.flags.state if rank is not None else 0
    settled = protocol.settled(word, slots) if rank is not None else True
    switches = []
    for name, why in why_not.items():
        bit, flip = known.BITS[name], flips.get(name)
        wanted = flip is not None if own == 0 else bool(after & bit)
        moving = wanted != bool(applied & bit) or (not settled and bool((after ^ before) & bit))
        switches.append(
            {
                "name": name,
                "state": "pending" if moving else "off" if applied & bit else "on",
                "wanted": "off" if wanted else "on",
                "available": not why,
                "reason": why,
                "step": _step(flip, after, n),
                "owner": flip.who if flip is not None else "",
                "left_s": max(0.0, (flip.until - now) / 1e9) if flip is not None and flip.until else None,
                "asked": flip.asked if flip is not None else None,
                "why": whys.get(name, ""),
            }
        )
    return {
        "k": "switch",
        "t": now,
        "leader": own == 0,
        "rank": own,
        "size": size,
        "armed": rank is not None,
        "word": [after, before, n],
        "settled": settled,
        "waits": rank.waits if rank is not None else "",
        "switches": switches,
        "slots": [
            {"rank": i, "armed": s.armed, "state": s.applied, "at": s.applied_at, "seen": s.seen}
            for i, s in enumerate(slots)
        ],
        "log": [list(row) for row in list(rank.log)[-16:]] if rank is not None else [],
        "ct": ct,
    }
