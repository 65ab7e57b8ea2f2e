"""What the GPU probe hands out. Shares are 0 to 1; rates are bytes a second; None is "not known", never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REASONS: tuple[tuple[int, str], ...] = (
    (0x001, "idle"),
    (0x002, "application clocks"),
    (0x004, "power cap"),
    (0x008, "hardware slowdown"),
    (0x010, "sync boost"),
    (0x020, "software thermal"),
    (0x040, "hardware thermal"),
    (0x080, "power brake"),
    (0x100, "display clock"),
    (0x200, "board limit"),
    (0x400, "reliability"),
)
"""Bits of nvmlClocksEventReason and their names."""

BENIGN = frozenset({"idle", "application clocks"})
"""Reasons that are no fault: nothing to do, or somebody set the clocks."""


def reasons(mask: int) -> tuple[str, ...]:
    """The names of a mask's bits; an unknown bit is named by its number."""
    known = tuple(name for bit, name in REASONS if mask & bit)
    rest = mask & ~sum(bit for bit, _ in REASONS)
    return known + tuple(f"reason 0x{1 << i:x}" for i in range(rest.bit_length()) if rest >> i & 1)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on the GPU, by the driver's list. ``pid`` as the driver says it (the host's, often)."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU, or one MIG slice of one, at one time. What could not be read is None, with the reason in ``missing``."""

    index: int
    """As NVML counts (PCI order); of the parent for a MIG slice."""
    uuid: str
    name: str
    bus_id: str
    minor: int | None
    time: int
    """CLOCK_MONOTONIC, ns."""
    mig: int | None = None
    """Number of the MIG slice; None for a whole GPU."""
    kernel_running: float | None = None
    """nvidia-smi's utilisation: share of time in which *a* kernel was running, however small."""
    memory_busy: float | None = None
    """nvidia-smi's memory utilisation: share of time in which memory was read or written."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    sm_busy: float | None = None
    """GPM: share of SM time with work on it."""
    sm_occupancy: float | None = None
    """GPM: resident warps ÷ the most possible."""
    tensor_busy: float | None = None
    """GPM: share of time in which tensor cores worked."""
    dram_busy: float | None = None
    """GPM: DRAM bandwidth ÷ its maximum."""
    processes: tuple[GpuProcess, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Field → why it is None, in the driver's words."""


@dataclass(frozen=True, slots=True)
class GpuBatch:
    """All GPUs at one poll. ``available`` False: no driver or no GPU, and ``why``."""

    available: bool
    why: str
    time: int
    gpus: tuple[GpuReading, ...] = ()
    driver: str | None = None
