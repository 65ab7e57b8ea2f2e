"""Kernels as screens, JSON and reports show them. Immutable; ``None`` means "not known", never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sgtop_core.model.histogram import Histogram

OUTSIDE = "outside forwards"
"""Label of kernels that ran between forwards (batch preparation, late copies)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of one mode, over the traced time of the window: the columns of nsys' ``cuda_gpu_kern_sum``."""

    name: str
    """Short; ``full_name`` is the demangled one."""
    category: str
    count: int
    """Instances."""
    total_ms: float
    share: float
    """Of the kernel time of its mode, 0 to 1 (nsys: Time %)."""
    avg_us: float
    med_us: float
    """From bins 3.9 % wide: at most 2 % off; the other columns are exact."""
    min_us: float
    max_us: float
    stddev_us: float
    """Of the sample, as nsys; 0 for a single instance."""
    per_step: float | None
    """Launches a forward of this mode; None outside forwards."""
    full_name: str = ""


@dataclass(frozen=True, slots=True)
class KernelMode:
    """The kernel table of one forward mode."""

    mode: str
    """A ForwardMode name, ``draft …`` for the draft model's runner, or ``OUTSIDE``."""
    forwards: int
    """Forwards that were traced from their first launch on."""
    launches: int
    """Kernels, copies and sets together."""
    launches_per_step: float | None
    total_ms: float
    graph_share: float | None
    """Share of kernels that ran as nodes of a CUDA graph."""
    rows: tuple[Kernel, ...]
    """Longest total first."""
    hidden: int = 0
    """Rows left out because the table is bounded."""


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Memory copies or sets of one kind."""

    kind: str
    count: int
    bytes: int
    total_ms: float
    gb_per_s: float | None


@dataclass(frozen=True, slots=True)
class KernelGaps:
    """Idle time of the GPU before kernels of one mode: ``max(end so far) → next start``, over all streams."""

    mode: str
    count: int
    total_ms: float
    p50_us: float | None
    p99_us: float | None
    max_us: float | None
    histogram: Histogram
    causes_ms: Mapping[str, float] = field(default_factory=dict)
    """``host wait``: the GPU was idle before the host began to launch the forward; ``kernel wait``: shorter than
    ``KernelView.threshold_us``; ``other``, after HTA's idle-time breakdown; and of those from the threshold on the time
    in which the main thread was ``preempted``, ``throttled``, in ``gc``, or had ``no work``. They sum to
    ``total_ms``."""

    def shares(self) -> tuple[tuple[str, float], ...]:
        """(cause, share of the gaps, 0 to 1), the largest first; those below half a percent are left out."""
        if not self.total_ms:
            return ()
        shares = ((name, ms / self.total_ms) for name, ms in self.causes_ms.items())
        return tuple(sorted((s for s in shares if s[1] >= 0.005), key=lambda s: -s[1]))


@dataclass(frozen=True, slots=True)
class KernelView:
    """Kernel tracing of one rank."""

    mode: str
    """What was asked for: off, windows, on."""
    state: str
    """off, waiting, enabling, tracing, disabling, settling, yielded, failed, unavailable."""
    reason: str
    """In words, why it does not trace."""
    window_s: float = 1.0
    period_s: float = 10.0
    traced_s: float = 0.0
    """Seconds of tracing that the figures below come from."""
    newest_s: float | None = None
    """CLOCK_MONOTONIC seconds of the youngest kernel in them."""
    modes: tuple[KernelMode, ...] = ()
    gaps: tuple[KernelGaps, ...] = ()
    all_gaps: KernelGaps | None = None
    """Of all modes together; ``mode`` is empty."""
    copies: tuple[CopyRow, ...] = ()
    busy_share: float | None = None
    """busy (union): share of the traced time in which any kernel, copy or set ran."""
    communication_share: float | None = None
    """Share of the traced time in which a communication kernel ran."""
    communication_exposed_share: float | None = None
    """… and nothing else."""
    event_busy_share: float | None = None
    """Inside forwards by CUDA events, over the same time: what the event-based gap would say."""
    categories_ms: Mapping[str, float] = field(default_factory=dict)
    inflation: Mapping[str, float] = field(default_factory=dict)
    """Mode → median step time inside the windows ÷ just before and after, at equal batch sizes: what tracing costs."""
    threshold_us: float = 5.0
    """Gaps below it are ``kernel wait``."""
    records: int = 0
    lost_buffers: int = 0
    untimed: int = 0
    """Records without timestamps, dropped."""
    cut: int = 0
    """Records of forwards that CUPTI told only in part, such as those that the end of a window cut; in no table."""
    ring_bytes: int = 0
    cupti: int | None = None
