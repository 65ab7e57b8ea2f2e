"""The figures of one recording, over its whole length, as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sgtop_core.model.snapshot import Alert, Quantiles, Server

REST = "rest"
"""Name of the last row where rows are left out: what those add up to."""
_SEVERITIES = ("info", "warning", "critical")

BLOCK_S = 5.0
"""Length of the blocks from whose spread the noise of a figure is known."""


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """Steps of one mode."""

    steps: int
    steps_per_s: float
    tokens: int | None
    tokens_per_s: float | None
    batch_p50: float | None
    batch_max: int | None
    step_ms: Quantiles
    gpu_ms: Quantiles | None
    graph_share: float | None
    hit_ratio: float | None


@dataclass(frozen=True, slots=True)
class ForwardFigures:
    """Forwards of one (runner, mode)."""

    runner: str
    mode: str
    count: int
    host_ms: Quantiles
    gpu_ms: Quantiles | None


@dataclass(frozen=True, slots=True)
class CulpritFigures:
    """Who ran instead of the scheduler."""

    comm: str
    pid: int
    count: int
    ms: float


@dataclass(frozen=True, slots=True)
class OtherCulprits:
    """All of them that are not named, together."""

    count: int
    ms: float


@dataclass(frozen=True, slots=True)
class ContentionFigures:
    """What the kernel's scheduler did to the main thread."""

    level: str
    wait_ms: float | None
    preemptions: int | None
    longest_ms: float | None
    throttled_ms: float | None
    migrations: int | None
    culprits: tuple[CulpritFigures, ...]
    """The longest first; at most MAX_CULPRITS."""
    others: OtherCulprits | None = None


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """A row of nsys's ``cuda_gpu_kern_sum``, for one mode. None where it is not known of the ``rest``."""

    mode: str
    name: str
    """``REST``: rows that the recorded tables left out."""
    category: str
    share: float
    total_ms: float
    count: int
    avg_us: float
    med_us: float | None
    """Of several stretches: their medians, weighted by count."""
    min_us: float | None
    max_us: float | None
    stddev_us: float | None
    per_step: float | None


@dataclass(frozen=True, slots=True)
class KernelModeFigures:
    """What was traced of one mode."""

    mode: str
    forwards: int
    launches: int
    total_ms: float


@dataclass(frozen=True, slots=True)
class KernelCover:
    """What the kernel table of a rank is made of."""

    traced_s: float = 0.0
    """Seconds of tracing that it comes from."""
    stretches: int = 0
    """Views that were added up: tracing windows, or parts of continuous tracing."""
    whole: bool = True
    """False: nothing could be added up without counting it twice; it is the newest view, which may reach back to before
    the recording."""
    modes: tuple[KernelModeFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class RankFigures:
    """One rank."""

    rank: str
    pid: int | None
    seconds: float
    """Time that was watched."""
    modes: Mapping[str, ModeFigures]
    forwards: tuple[ForwardFigures, ...]
    stages_s: Mapping[str, float]
    gap_label: str | None
    gaps_ms: Quantiles | None
    causes_ms: Mapping[str, float]
    gc: Mapping[int, Quantiles]
    """Generation → collections, ms."""
    busy_share: float | None
    finished: int | None
    queue: Mapping[str, tuple[float, int]]
    """Queue → (mean, maximum)."""
    contention: ContentionFigures | None
    kernels: tuple[KernelFigures, ...]
    blocks: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Figure → its value in each block of BLOCK_S, for the noise; None where it is not known."""
    traced: KernelCover = field(default_factory=KernelCover)


def severity(a: Alert) -> int:
    """The higher, the worse."""
    return _SEVERITIES.index(a.severity) if a.severity in _SEVERITIES else -1


@dataclass(frozen=True, slots=True)
class AlertFigures:
    """A finding as it stood at its worst, and for how long it held."""

    alert: Alert
    """In the middle of the time for which it was as severe as it ever was; ``active`` is as at the end."""
    seconds: float

    @property
    def title(self) -> str:
        """With the rank in front, once: most titles name it themselves."""
        a = self.alert
        return a.title if a.rank is None or f"{a.title} ".startswith(f"{a.rank} ") else f"{a.rank}: {a.title}"


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole recording."""

    file: str
    seconds: float
    start_unix: float | None
    complete: bool
    damage: int
    server: Server
    way: str | None
    ranks: tuple[RankFigures, ...]
    alerts: tuple[AlertFigures, ...]
    lost: Mapping[str, int]
    hook_us_p50: float | None
    hook_us_p99: float | None
