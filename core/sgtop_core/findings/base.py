"""What a rule gets to see and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sgtop_core.model.snapshot import Gpu, Mode, Process, Rank, Server

DECODES = ("DECODE", "TARGET_VERIFY")
PREFILLS = ("EXTEND", "MIXED", "SPLIT_PREFILL")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank. ``short`` is its last 5 s, ``long`` its last minute, as far as it was watched."""

    short: Rank
    long: Rank
    short_s: float
    """Seconds that ``short`` really covers."""
    long_s: float
    hello: Mapping[str, Any]
    args: Mapping[str, Any]
    """Server arguments by the running version's own names."""
    mode_age_s: Mapping[str, float]
    """Mode → seconds since its last step; modes that never ran are left out."""
    watched_s: float
    """Seconds since sgtop saw its first event of this rank."""

    @property
    def label(self) -> str:
        """Name of the rank."""
        return self.short.rank

    def mode(self, *names: str) -> Mode | None:
        """The first of these modes that ran in the last 5 s."""
        return next((self.short.modes[n] for n in names if n in self.short.modes), None)

    def time_share(self, names: Iterable[str]) -> float:
        """Share of the last 5 s that steps of these modes took."""
        if self.short_s <= 0:
            return 0.0
        return sum(self.short.modes[n].step_ms.total for n in names if n in self.short.modes) / 1e3 / self.short_s


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that run the same batches."""

    name: str | None
    """What a finding about it says as its rank: None for the whole server."""
    ranks: tuple[RankFacts, ...]

    @property
    def leader(self) -> RankFacts:
        """The rank whose figures stand for the group."""
        return self.ranks[0]


def _group_name(ranks: list[RankFacts], groups: int) -> str | None:
    if len(ranks) == 1:
        return ranks[0].label
    return None if groups == 1 else " ".join(w for w in ranks[0].label.split() if not w.startswith(("TP", "EP")))


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything at one moment."""

    unix: float
    server: Server
    ranks: tuple[RankFacts, ...]
    """Ranks with an agent, also those that hang."""
    processes: tuple[Process, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    held: Callable[[str | None], bool] = field(default=lambda rank: False)
    """Whether this rule's finding about this rank is on now; for a lower threshold to leave than to enter."""

    def groups(self) -> list[Group]:
        """TP groups. Their ranks run the same batches in step, so most findings are the group's, not a rank's."""
        by: dict[tuple[int, int], list[RankFacts]] = {}
        for r in self.ranks:
            own = r.hello.get("rank") or {}
            by.setdefault((own.get("dp") or 0, own.get("pp") or 0), []).append(r)
        return [Group(_group_name(ranks, len(by)), tuple(ranks)) for ranks in by.values()]

    @property
    def url(self) -> str:
        """Base of the server's HTTP interface, for commands to paste."""
        return f"http://{self.server.host}:{self.server.port or 30000}"

    def holding(self, rule: str, active: Callable[[str, str | None], bool]) -> Facts:
        """The same facts for one rule."""
        return Facts(self.unix, self.server, self.ranks, self.processes, self.gpus, lambda rank: active(rule, rank))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule's answer about one rank, or about the server (rank None)."""

    rank: str | None
    severity: str
    """info, warning, critical"""
    title: str
    evidence: str
    next: str


class Rule(Protocol):
    """One finding. A module in this package has one, named RULE."""

    @property
    def id(self) -> str:
        """Name in JSON and in the log; never changes."""

    @property
    def raise_s(self) -> float:
        """Seconds for which it must hold before it is shown."""

    @property
    def clear_s(self) -> float:
        """Seconds for which it must be gone before it is taken down."""

    def check(self, facts: Facts) -> Iterable[Verdict]:
        """What holds now."""


def flag(args: Mapping[str, Any], *names: str) -> str | None:
    """The command-line flag of the first of these arguments that the running version has."""
    return next(("--" + n.replace("_", "-") for n in names if n in args), None)


def whole(v: float | None) -> str:
    """A count with thousands apart."""
    return "–" if v is None else f"{v:,.0f}"


def span(seconds: float) -> str:
    """A length of time for a sentence."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def ms(v: float | None) -> str:
    """Milliseconds with the digits that matter."""
    if v is None:
        return "–"
    return f"{v:.1f} ms" if v < 100 else f"{v:,.0f} ms"


def percent(share: float | None) -> str:
    """A share."""
    if share is None:
        return "–"
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"
