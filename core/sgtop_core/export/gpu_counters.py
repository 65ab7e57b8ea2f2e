"""GPU readings of a recording as curves: one group a GPU, a curve a counter that the driver gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .timeline import Counter

SHOWN: tuple[tuple[str, str, float], ...] = (
    ("sm_busy", "%", 100.0),
    ("dram_busy", "%", 100.0),
    ("tensor_busy", "%", 100.0),
    ("sm_occupancy", "%", 100.0),
    ("kernel_running", "%", 100.0),
    ("sm_clock_mhz", "MHz", 1.0),
    ("power_w", "W", 1.0),
    ("temperature_c", "°C", 1.0),
    ("memory_used_bytes", "GiB", 1 / 2**30),
    ("pcie_rx_bytes_per_s", "GB/s", 1e-9),
    ("pcie_tx_bytes_per_s", "GB/s", 1e-9),
    ("nvlink_rx_bytes_per_s", "GB/s", 1e-9),
    ("nvlink_tx_bytes_per_s", "GB/s", 1e-9),
)
"""(field of snapshot.Gpu, unit, factor to the unit)"""


def counters(readings: Sequence[tuple[int, Sequence[Mapping[str, Any]]]], lo: int, hi: int) -> list[Counter]:
    """Curves of ``readings`` (ns at which each was recorded, the fields of each GPU) between ``lo`` and ``hi`` ns."""
    by_gpu: dict[str, dict[int, Mapping[str, Any]]] = {}
    for recorded, gpus in readings:
        for g in gpus:
            at = g.get("mono_ns")
            t = at if isinstance(at, int) else recorded  # recordings made before readings had a time
            if lo <= t <= hi:
                by_gpu.setdefault(str(g.get("uuid") or g.get("index")), {})[t] = g
    out = []
    for rows in by_gpu.values():
        times = sorted(rows)
        label = _label(rows[times[-1]])
        column = np.array(times, np.int64)
        for name, unit, factor in SHOWN:
            v = np.array([_number(rows[k].get(name)) * factor for k in times])
            if not bool(np.isnan(v).all()):
                short = name.removesuffix("_bytes_per_s").removesuffix("_bytes").removesuffix("_mhz")
                out.append(Counter(label, short.removesuffix("_w").removesuffix("_c"), unit, column, v))
    out.sort(key=lambda c: c.group)  # stable: the order of SHOWN within a GPU
    return out


def _label(g: Mapping[str, Any]) -> str:
    mig = str(g.get("name", "")).partition(" (MIG ")[2]
    return f"GPU {g.get('index')}" + (f" MIG {mig.rstrip(')')}" if mig else "")


def _number(v: Any) -> float:
    return float(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else float("nan")
