"""GPU readings as the snapshot shows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sgtop_probes.gpu.types import GpuBatch, GpuReading

from sgtop_core.model.snapshot import Gpu

_SAME = (
    "kernel_running",
    "memory_used_bytes",
    "memory_total_bytes",
    "sm_clock_mhz",
    "sm_clock_max_mhz",
    "power_w",
    "power_limit_w",
    "temperature_c",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "sm_busy",
    "sm_occupancy",
    "tensor_busy",
    "dram_busy",
)


def view(batch: GpuBatch, ranks: Mapping[str, tuple[str, ...]]) -> tuple[Gpu, ...]:
    """GPUs of a batch; those that no rank uses are left out while any is known to be used.

    Args:
        batch: readings.
        ranks: UUID → labels of the ranks on it.
    """
    shown = [g for g in batch.gpus if g.uuid in ranks] or list(batch.gpus)
    return tuple(_one(g, ranks.get(g.uuid, ())) for g in shown)


def _one(g: GpuReading, ranks: tuple[str, ...]) -> Gpu:
    name = g.name if g.mig is None else f"{g.name} (MIG {g.mig})"
    reasons = g.throttle_reasons or ()
    return Gpu(
        index=g.index,
        uuid=g.uuid,
        name=name,
        ranks=ranks,
        mono_ns=g.time,
        throttle_reasons=tuple(r for r in reasons if r != "idle"),
        **{field: getattr(g, field) for field in _SAME},
    )
