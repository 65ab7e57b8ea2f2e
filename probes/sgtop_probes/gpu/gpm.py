"""GPM: the SM, tensor and memory counters of Hopper and later, read as the difference of two samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MIN_NS = 100_000_000
"""Samples closer together than this are refused or wrong."""
MIB = 1024 * 1024

METRICS: tuple[tuple[str, str, float], ...] = (
    ("sm_busy", "NVML_GPM_METRIC_SM_UTIL", 0.01),
    ("sm_occupancy", "NVML_GPM_METRIC_SM_OCCUPANCY", 0.01),
    ("tensor_busy", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", 0.01),
    ("dram_busy", "NVML_GPM_METRIC_DRAM_BW_UTIL", 0.01),
    ("pcie_rx_bytes_per_s", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", MIB),
    ("pcie_tx_bytes_per_s", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", MIB),
    ("nvlink_rx_bytes_per_s", "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", MIB),
    ("nvlink_tx_bytes_per_s", "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", MIB),
)
"""(field of GpuReading, NVML's metric, factor to the field's unit)"""


class Gpm:
    """Two samples of one device, used in turn."""

    def __init__(self, nvml: Any, take: Callable[[Any], object]) -> None:
        """``take`` fills a sample (of the whole device, or of a MIG slice).

        Raises:
            nvml.NVMLError: no memory for samples, or this driver has no GPM.
        """
        self._nvml = nvml
        self._take = take
        self._samples: list[Any] = []
        try:
            for _ in range(2):
                self._samples.append(nvml.nvmlGpmSampleAlloc())
        except nvml.NVMLError:
            self.close()
            raise
        self._at = -1
        self._values: dict[str, float] = {}
        self._missing: dict[str, str] = {"sm_busy": "the first sample was taken just now"}

    def read(self, now: int) -> tuple[Mapping[str, float], Mapping[str, str]]:
        """(field → value, field → why not) since the sample before; the last ones again when that is too fresh.

        Raises:
            nvml.NVMLError: the driver refused a sample.
        """
        if self._at >= 0 and now - self._at < MIN_NS:
            return self._values, self._missing
        old, new = self._samples
        self._take(new)
        first, self._at = self._at < 0, now
        self._samples = [new, old]
        if not first:
            self._values, self._missing = self._difference(old, new)
        return self._values, self._missing

    def _difference(self, old: Any, new: Any) -> tuple[dict[str, float], dict[str, str]]:
        nvml = self._nvml
        get = nvml.c_nvmlGpmMetricsGet_t()
        get.version = nvml.NVML_GPM_METRICS_GET_VERSION
        get.numMetrics = len(METRICS)
        get.sample1, get.sample2 = old, new
        for i, (_field, name, _factor) in enumerate(METRICS):
            get.metrics[i].metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(get)
        values: dict[str, float] = {}
        missing: dict[str, str] = {}
        for i, (field, _name, factor) in enumerate(METRICS):
            m = get.metrics[i]
            value = float(m.value)
            if m.nvmlReturn != 0:
                missing[field] = str(nvml.NVMLError(m.nvmlReturn))
            elif value != value or value < 0:
                missing[field] = f"the driver gave {value}"
            else:
                values[field] = value * factor
        return values, missing

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                pass
        self._samples = []
