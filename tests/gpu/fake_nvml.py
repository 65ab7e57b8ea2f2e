"""A driver as pynvml shows it: the functions that sgtop calls, with failures on demand."""

# ruff: noqa: N802, N815  (the names are NVIDIA's)

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar


class NVMLError(Exception):
    """As pynvml's."""

    TEXTS: ClassVar = {
        3: "Not Supported",
        6: "Not Found",
        9: "Driver Not Loaded",
        12: "NVML Shared Library Not Found",
        15: "GPU is lost",
    }

    def __init__(self, value: int) -> None:
        super().__init__(self.TEXTS.get(value, f"error {value}"))
        self.value = value


class _Metric:
    def __init__(self) -> None:
        self.metricId, self.nvmlReturn, self.value = 0, 0, 0.0


class _MetricsGet:
    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1: Any = None
        self.sample2: Any = None
        self.metrics = [_Metric() for _ in range(98)]


class FakeNvml:
    """``fail``: function name → error number, or (function name, device) → error number."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY = 2, 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 5, 10
    NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 20, 21
    NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 60, 61
    c_nvmlGpmMetricsGet_t = _MetricsGet

    def __init__(self, count: int = 2, *, gpm: bool = True, mig: tuple[int, ...] = ()) -> None:
        self.count, self.gpm, self.mig = count, gpm, mig
        self.fail: dict[Any, int] = {}
        self.metric_errors: dict[int, int] = {}
        self.calls: list[str] = []
        self.samples = 0
        self.taken: list[Any] = []
        self.shut = False
        self.nvlink_kib = 0
        self.reasons = 0x4
        self.processes = {0: [(4242, 10 << 30)]}

    def _do(self, name: str, device: Any = None) -> None:
        self.calls.append(name)
        for key in (name, (name, device)):
            if key in self.fail:
                raise NVMLError(self.fail[key])

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = {
            "nvmlDeviceGetMaxClockInfo": lambda d: 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda d: self.reasons,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda d: self.reasons,
            "nvmlDeviceGetPowerUsage": lambda d: 345_600,
            "nvmlDeviceGetEnforcedPowerLimit": lambda d: 700_000,
            "nvmlDeviceGetTemperature": lambda d: 55,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda d: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda d: 8,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda d: 5,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda d: 16,
            "nvmlDeviceGetUUID": lambda d: f"GPU-{d}" if isinstance(d, int) else f"MIG-{d[0]}-{d[1]}",
            "nvmlDeviceGetName": lambda d: b"NVIDIA H200",
            "nvmlDeviceGetMinorNumber": lambda d: d,
            "nvmlDeviceGetPciInfo": lambda d: SimpleNamespace(busId=f"00000000:{d:02X}:00.0".encode()),
            "nvmlDeviceGetUtilizationRates": lambda d: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda d: SimpleNamespace(used=100 << 30, total=141 << 30, free=41 << 30),
            "nvmlDeviceGetComputeRunningProcesses": lambda d: [
                SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in self.processes.get(d, [])
            ],
            "nvmlDeviceGetGpuInstanceId": lambda d: 7,
            "nvmlDeviceGetMaxMigDeviceCount": lambda d: 4,
            "nvmlDeviceGetMigMode": lambda d: (1 if self.mig else 0, 0),
            "nvmlGpmQueryDeviceSupport": lambda d: SimpleNamespace(isSupportedDevice=int(self.gpm)),
        }
        if name not in values:
            raise AttributeError(name)

        def call(device: Any, *_more: Any) -> Any:
            self._do(name, device)
            return values[name](device)

        return call

    def nvmlInit(self) -> None:
        self._do("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._do("nvmlShutdown")
        self.shut = True

    def nvmlSystemGetDriverVersion(self) -> bytes:
        self._do("nvmlSystemGetDriverVersion")
        return b"580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        self._do("nvmlDeviceGetCount")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        self._do("nvmlDeviceGetHandleByIndex", i)
        return i

    def nvmlDeviceGetMigDeviceHandleByIndex(self, d: int, k: int) -> tuple[int, int]:
        self._do("nvmlDeviceGetMigDeviceHandleByIndex", d)
        if k not in self.mig:
            raise NVMLError(6)
        return d, k

    def nvmlDeviceGetClockInfo(self, d: Any, kind: int) -> int:
        self._do("nvmlDeviceGetClockInfo", d)
        return {1: 1755, 2: 3201}[kind]

    def nvmlDeviceGetPcieThroughput(self, d: Any, kind: int) -> int:
        self._do("nvmlDeviceGetPcieThroughput", d)
        return {0: 2_000, 1: 1_000}[kind]

    def nvmlDeviceGetFieldValues(self, d: Any, fields: list[tuple[int, int]]) -> list[Any]:
        self._do("nvmlDeviceGetFieldValues", d)
        assert fields[0][1] == 0xFFFFFFFF, "all links together"
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=self.nvlink_kib))]

    def nvmlGpmSampleAlloc(self) -> list[int]:
        self._do("nvmlGpmSampleAlloc")
        self.samples += 1
        return [0]

    def nvmlGpmSampleFree(self, sample: list[int]) -> None:
        self.samples -= 1

    def nvmlGpmSampleGet(self, d: Any, sample: list[int]) -> None:
        self._do("nvmlGpmSampleGet", d)
        self.taken.append(d)
        sample[0] = len(self.taken)

    def nvmlGpmMigSampleGet(self, parent: int, instance: int, sample: list[int]) -> None:
        self._do("nvmlGpmMigSampleGet", parent)
        self.taken.append((parent, instance))
        sample[0] = len(self.taken)

    def nvmlGpmMetricsGet(self, get: _MetricsGet) -> None:
        self._do("nvmlGpmMetricsGet")
        assert get.sample2[0] > get.sample1[0] > 0, "the older sample comes first"
        for m in get.metrics[: get.numMetrics]:
            m.nvmlReturn = self.metric_errors.get(m.metricId, 0)
            m.value = {2: 80.0, 3: 25.0, 5: 40.0, 10: 60.0, 20: 100.0, 21: 50.0, 60: 10.0, 61: 20.0}[m.metricId]
