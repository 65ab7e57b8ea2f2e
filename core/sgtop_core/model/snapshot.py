"""The snapshot: everything a screen, a JSON line or a report shows, immutable, four times a second.

A snapshot is a function of the events and of the chosen window; nothing in it is measured here. ``None``
means "not known" and is never replaced by 0. Milliseconds, seconds and bytes stand in the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sgtop_core.model.histogram import Histogram as Histogram
from sgtop_core.model.kernel_view import Kernel as Kernel
from sgtop_core.model.kernel_view import KernelView
from sgtop_core.model.switch_view import SwitchGroup

SCHEMA = 1
"""Version of the JSON output; goes up when a field changes its meaning or goes away."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server that is watched."""

    port: int | None
    model: str | None
    sglang_version: str | None
    tp: int | None
    dp: int | None
    pp: int | None
    ep: int | None = None
    host: str = "127.0.0.1"
    pid: int | None = None
    device: str | None = None
    ranks_elsewhere: tuple[str, ...] = ()
    """Labels of ranks that are not on this host."""


@dataclass(frozen=True, slots=True)
class Attach:
    """How sgtop is attached. ``state``: connecting, starting, live, lost, waiting, hung, agentless, replay."""

    way: str | None
    state: str
    message: str = ""
    """In words: why it is not live, or what would make it better."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles over the window; the unit stands in the field that holds it."""

    count: int
    p50: float | None
    p99: float | None
    max: float | None
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Mode:
    """Steps of one forward mode in the window."""

    steps: int
    steps_per_s: float
    tokens_per_s: float | None
    batch_p50: float | None
    batch_max: int | None
    step_ms: Quantiles
    """Length of a step: from the result of the step before to its own result; from the entry of its run_batch where
    the loop had rested in between. Under overlap, entry to entry would charge a prefill to the decode behind it."""
    gpu_ms: Quantiles | None
    graph_share: float | None
    """Share of steps whose target forward replayed a CUDA graph, 0 to 1."""
    cached_tokens_per_s: float | None = None
    hit_ratio: float | None = None
    """EXTEND and MIXED: cached ÷ (cached + computed) prompt tokens."""
    series: tuple[float | None, ...] = ()
    """Step p50 in ms over the window, oldest first, for a sparkline; None where no step ran."""
    rate_series: tuple[float | None, ...] = ()
    """tokens/s over the window, oldest first."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Forwards of one (runner, mode) in the window."""

    runner: str
    mode: str
    count: int
    host_ms: Quantiles
    gpu_ms: Quantiles | None
    graph_share: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class StepGaps:
    """Time between the end of one forward and the start of the next, and its causes."""

    quantiles_ms: Quantiles
    label: str
    """``gpu`` between forwards on the GPU (event based); ``host`` on the main thread, where there is no GPU."""
    causes_ms: Mapping[str, float] = field(default_factory=dict)
    """Cause → ms in the window; the parts sum to ``quantiles_ms.total``."""
    histogram: Histogram | None = None
    busy_share: float | None = None
    """Share of the window inside forwards, 0 to 1 (union of intervals)."""
    by_mode: Mapping[str, Quantiles] = field(default_factory=dict)
    """Gaps before forwards of a mode."""
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    """Gaps before forwards of a mode; the same edges as ``histogram``."""
    causes_by_mode_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Mode of the forward after the gap → cause → ms; they sum to ``causes_ms``."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One slice of the mode strip: what the rank did for most of it."""

    mode: str | None
    """A ForwardMode name, ``idle``, ``paused``; None where nothing is known (not attached yet, lost)."""
    eager: bool = False
    """A decode or verify step that could have been a graph ran eager."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Queue figures, at most 10 times a second; None not known."""

    running: int | None
    waiting: int | None
    grammar: int | None = None
    oldest_wait_s: float | None = None
    retracted: int | None = None
    pd: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GC:
    """Python garbage collections on the main thread in the window."""

    count: int
    total_ms: float
    max_ms: float | None
    by_generation: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who ran instead of the scheduler."""

    pid: int
    comm: str
    count: int
    """Preemptions."""
    ms: float
    """Run-queue wait that it caused, waits after a wake-up among it."""
    kind: str = "other"
    """``server`` (a process of this server), ``sgtop`` (this one), ``another-sgtop``, ``kernel`` (a kernel thread),
    ``other``.
    """
    certain: bool = True
    """False at levels C and D: it used that CPU meanwhile, and is credited with its share."""
    ended: bool = False
    """It has ended; looked for until some seconds after it ran last."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a scheduler may run and runs; None not known. CPU lists are sorted."""

    host_cpus: tuple[int, ...] = ()
    """CPUs of the host that are on."""
    allowed_cpus: tuple[int, ...] = ()
    """CPUs that the main thread may use."""
    cpu: int | None = None
    """The CPU that it ran on last."""
    siblings: tuple[int, ...] = ()
    """Hyper-threads of that CPU's core, itself among them."""
    node: int | None = None
    gpu_node: int | None = None
    near_cpus: tuple[int, ...] = ()
    """CPUs of the GPU's NUMA node; empty where there is only one node, or the host does not say."""
    governor: str | None = None
    mhz: float | None = None
    max_mhz: float | None = None
    threads: int | None = None
    """Threads of the scheduler process."""
    quota_cpus: float | None = None
    """CPUs that its cgroup may use; None without a quota."""
    quota_path: str = ""
    quota_version: int | None = None
    """Of the cgroup file system, 1 or 2."""
    sudo: bool = False
    """sgtop has not the rights to change this; a command that does needs sudo."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """What the kernel's scheduler did to the main thread, in the window; None not known at this level."""

    level: str
    """A, B, C or D of DESIGN §6."""
    message: str = ""
    """What the next level would need."""
    wait_ms: float | None = None
    preemptions: int | None = None
    longest_ms: float | None = None
    culprits: tuple[Culprit, ...] = ()
    throttled_ms: float | None = None
    """Time that the main thread was held back by its cgroup's quota; not part of ``wait_ms``."""
    migrations: int | None = None
    numa_ok: bool | None = None
    """False: it mostly runs far from its GPU; None: one NUMA node, or not known which is the GPU's."""
    nr_throttled: int | None = None
    """Periods in which the cgroup used its quota up."""
    place: Place | None = None
    seen_s: float | None = None
    """Seconds of the window that these are of; None: ``Snapshot.covered_s`` (recordings of older versions)."""


@dataclass(frozen=True, slots=True)
class GpuMode:
    """What a GPU's counters were while forwards of one mode ran: an estimate; None: the driver does not say.

    Shares are 0 to 1. See ``model.gpu_modes`` for how it is made.
    """

    gpu_s: float
    """GPU time of the mode in the readings that were used, seconds; all ranks on the GPU."""
    alone: float
    """Share of the GPU time in those readings that was this mode's, 0 to 1: near 1 the estimate is the mode's own."""
    kernel_running: float | None = None
    sm_busy: float | None = None
    sm_occupancy: float | None = None
    tensor_busy: float | None = None
    dram_busy: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or MIG slice; shares are 0 to 1; None: the driver does not say."""

    index: int
    uuid: str
    name: str
    ranks: tuple[str, ...] = ()
    kernel_running: float | None = None
    """nvidia-smi's utilisation: share of time in which a kernel was running."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    sm_busy: float | None = None
    sm_occupancy: float | None = None
    tensor_busy: float | None = None
    dram_busy: float | None = None
    mono_ns: int | None = None
    """When it was read, CLOCK_MONOTONIC."""
    by_mode: Mapping[str, GpuMode] = field(default_factory=dict)
    """Forward mode → estimates in the window; empty where GPU times of forwards are not known."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One scheduler process."""

    rank: str
    """Label such as ``TP0`` or ``DP1 TP0``."""
    pid: int | None
    state: str
    """live, starting, hung, lost, elsewhere, agentless"""
    message: str
    last_step: int | None
    """forward_ct of the last step seen."""
    last_step_age_s: float | None
    modes: Mapping[str, Mode]
    forwards: tuple[Forward, ...]
    stages_s: Mapping[str, float]
    """Exclusive seconds of the main thread in the window, by SGLang's stage name."""
    queue: Queue
    kv_usage: float | None
    gaps: StepGaps | None
    gc: GC | None
    strip: tuple[Cell, ...] = ()
    """The last seconds, oldest first; ``Snapshot.strip_cell_s`` is the width of a cell."""
    graph_max_bs: int | None = None
    cpu_share: float | None = None
    """CPU of the scheduler process, 1.0 = one core."""
    finished_per_s: float | None = None
    """Requests that finished a second, in the window."""
    kernels: Mapping[str, tuple[Kernel, ...]] | None = None
    """Mode → kernels, most time first; None while kernel tracing is off."""
    kernel_gaps: StepGaps | None = None
    """Gaps between kernels, label ``kernel``; None while kernel tracing is off."""
    tracing: KernelView | None = None
    """Kernel tracing: its state, and all its figures; None where nobody asked for it."""
    cpu: Cpu | None = None
    holds_up_ms: Mapping[str, float] = field(default_factory=dict)
    """What this rank did while others of its group waited for it between forwards: cause → ms in the window."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What sgtop costs, measured."""

    hook_us_p50: float | None
    hook_us_p99: float | None
    client_cpu_share: float | None
    """sgtop's own process, 1.0 = one core."""
    agent_cpu_share: float | None = None
    """The agent's threads, 1.0 = one core, worst rank."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A finding: one sentence with its evidence and a line that can be pasted."""

    id: str
    severity: str
    """info, warning, critical"""
    since: float
    """Unix seconds."""
    rank: str | None
    title: str
    evidence: str
    next: str
    active: bool = True
    quiet_s: float = 0.0
    """Seconds for which its rule has not said it again: so old are its title and evidence."""


@dataclass(frozen=True, slots=True)
class Process:
    """A helper process of the server: tokenizer (the HTTP server's process), detokenizer, DP controller."""

    role: str
    pid: int
    cpu_share: float | None
    rss_bytes: int | None
    threads: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the server."""

    time: float
    """Unix seconds."""
    mono_ns: int
    window_s: float
    """Chosen window; ``covered_s`` of it is filled."""
    covered_s: float
    server: Server
    attach: Attach
    ranks: tuple[Rank, ...]
    overhead: Overhead
    lost: Mapping[str, int]
    """Table → rows lost since attaching, all ranks."""
    alerts: tuple[Alert, ...]
    processes: tuple[Process, ...] = ()
    strip_cell_s: float = 0.08
    log: tuple[str, ...] = ()
    """Latest notes and audit lines, newest last."""
    gpus: tuple[Gpu, ...] = ()
    switches: tuple[SwitchGroup, ...] = ()
    """Switches of the groups in which some client has armed them; empty where none has."""
