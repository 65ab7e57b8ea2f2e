"""NVML, one reading a second. Every call may fail by itself: that cell is None and the driver's reason is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from .gpm import Gpm
from .types import GpuBatch, GpuProcess, GpuReading, reasons

_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
PCIE_EVERY_NS = 2_000_000_000
"""Without GPM the driver measures PCIe for 20 ms a direction, while it blocks the caller: seldom."""


def _module() -> Any:
    import pynvml

    return pynvml


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _Cells:
    """Collects the values of one reading; a failing call becomes a reason."""

    def __init__(self, errors: tuple[type[BaseException], ...]) -> None:
        self._errors = errors
        self.values: dict[str, Any] = {}
        self.missing: dict[str, str] = {}

    def put(self, field: str, call: Callable[[], object]) -> None:
        try:
            self.values[field] = call()
        except self._errors as e:
            self.missing[field] = str(e)

    def several(self, fields: Iterable[str], call: Callable[[], tuple[object, ...]]) -> None:
        names = tuple(fields)
        try:
            self.values.update(zip(names, call(), strict=True))
        except self._errors as e:
            self.missing.update(dict.fromkeys(names, str(e)))


class _Device:
    """A GPU or a MIG slice."""

    def __init__(self, nvml: Any, handle: Any, index: int, parent: Any = None, mig: int | None = None) -> None:
        self._nvml, self._handle, self._parent = nvml, handle, parent
        self.index, self.mig = index, mig
        # A wrong argument, a missing function or an odd structure must cost one cell, not the reading.
        self._errors = (nvml.NVMLError, ValueError, AttributeError, TypeError)
        whole = handle if parent is None else parent
        self._whole = whole
        cells = _Cells(self._errors)
        cells.put("uuid", lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
        cells.put("name", lambda: _text(nvml.nvmlDeviceGetName(handle)))
        cells.put("bus_id", lambda: _text(nvml.nvmlDeviceGetPciInfo(whole).busId))
        cells.put("minor", lambda: int(nvml.nvmlDeviceGetMinorNumber(whole)))
        self._fixed = cells.values
        self._fixed_missing = cells.missing
        self._gpm, self._why_no_gpm = self._open_gpm()
        self._counters: dict[str, tuple[int, int]] = {}
        self._pcie: tuple[int, dict[str, Any], dict[str, str]] | None = None

    def _open_gpm(self) -> tuple[Gpm | None, str]:
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(self._whole).isSupportedDevice:
                return None, "GPM needs Hopper or later"
            if self._parent is None:
                return Gpm(nvml, lambda s: nvml.nvmlGpmSampleGet(self._handle, s)), ""
            instance = nvml.nvmlDeviceGetGpuInstanceId(self._handle)
            return Gpm(nvml, lambda s: nvml.nvmlGpmMigSampleGet(self._parent, instance, s)), ""
        except self._errors as e:
            return None, f"GPM: {e}"

    def read(self, now: int) -> GpuReading:
        """A reading at ``now`` (ns)."""
        nvml, h = self._nvml, self._handle
        c = _Cells(self._errors)
        c.missing.update(self._fixed_missing)
        c.several(("kernel_running", "memory_busy"), self._utilisation)
        c.several(("memory_used_bytes", "memory_total_bytes"), self._memory)
        c.put("sm_clock_mhz", lambda: int(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)))
        c.put("sm_clock_max_mhz", lambda: int(nvml.nvmlDeviceGetMaxClockInfo(self._whole, nvml.NVML_CLOCK_SM)))
        c.put("memory_clock_mhz", lambda: int(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)))
        c.put("throttle_reasons", lambda: reasons(self._reason_mask()))
        c.put("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(self._whole) / 1000)
        c.put("power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._whole) / 1000)
        c.put("temperature_c", lambda: int(nvml.nvmlDeviceGetTemperature(self._whole, nvml.NVML_TEMPERATURE_GPU)))
        for field, name in (
            ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
            ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
            ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
            ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
        ):
            c.put(field, lambda name=name: int(getattr(nvml, name)(self._whole)))  # type: ignore[misc]
        c.put("processes", self._processes)
        self._counters_of(c, now)
        c.values.setdefault("processes", ())
        return GpuReading(
            index=self.index,
            uuid=self._fixed.get("uuid", ""),
            name=self._fixed.get("name", "GPU"),
            bus_id=self._fixed.get("bus_id", ""),
            minor=self._fixed.get("minor"),
            time=now,
            mig=self.mig,
            missing=c.missing,
            **c.values,
        )

    def _counters_of(self, c: _Cells, now: int) -> None:
        if self._gpm is not None:
            try:
                values, missing = self._gpm.read(now)
                c.values.update(values)
                c.missing.update(missing)
            except self._errors as e:
                c.missing["sm_busy"] = f"GPM: {e}"
        else:
            for field in ("sm_busy", "sm_occupancy", "tensor_busy", "dram_busy"):
                c.missing[field] = self._why_no_gpm
        if self.mig is None:
            if "pcie_rx_bytes_per_s" not in c.values:
                self._slow_pcie(c, now)
            if "nvlink_rx_bytes_per_s" not in c.values:
                self._nvlink(c, now)

    def _utilisation(self) -> tuple[float, float]:
        u = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        return u.gpu / 100, u.memory / 100

    def _memory(self) -> tuple[int, int]:
        m = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return int(m.used), int(m.total)

    def _reason_mask(self) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._whole))
        except self._errors:  # drivers before 535 know it by its old name
            return int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._whole))

    def _processes(self) -> tuple[GpuProcess, ...]:
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return tuple(GpuProcess(int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory)) for p in found)

    def _slow_pcie(self, c: _Cells, now: int) -> None:
        nvml = self._nvml
        if self._pcie is None or now - self._pcie[0] >= PCIE_EVERY_NS:
            got = _Cells(self._errors)
            for field, kind in (
                ("pcie_rx_bytes_per_s", "NVML_PCIE_UTIL_RX_BYTES"),
                ("pcie_tx_bytes_per_s", "NVML_PCIE_UTIL_TX_BYTES"),
            ):
                got.put(
                    field,
                    lambda kind=kind: float(  # type: ignore[misc]
                        nvml.nvmlDeviceGetPcieThroughput(self._handle, getattr(nvml, kind)) * _KIB
                    ),
                )
            self._pcie = (now, got.values, got.missing)
        c.values.update(self._pcie[1])
        c.missing.update(self._pcie[2])

    def _nvlink(self, c: _Cells, now: int) -> None:
        nvml = self._nvml
        for field, name in (
            ("nvlink_rx_bytes_per_s", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
            ("nvlink_tx_bytes_per_s", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
        ):
            try:
                value = nvml.nvmlDeviceGetFieldValues(self._handle, [(getattr(nvml, name), _ALL_LINKS)])[0]
                if value.nvmlReturn != 0:
                    raise nvml.NVMLError(value.nvmlReturn)
                kib = int(value.value.ullVal)
            except self._errors as e:
                c.missing[field] = str(e)
                continue
            before = self._counters.get(field)
            self._counters[field] = (now, kib)
            if before is None or now <= before[0] or kib < before[1]:
                c.missing[field] = "the first reading was taken just now"
            else:
                c.values[field] = (kib - before[1]) * _KIB / ((now - before[0]) / 1e9)
                c.missing.pop(field, None)

    def close(self) -> None:
        """Free what NVML allocated."""
        if self._gpm is not None:
            self._gpm.close()


class GpuSource:
    """All GPUs of this host. Never raises: without a driver ``available`` is False and ``why`` says so."""

    def __init__(self, nvml: Any = None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """``nvml``: the module pynvml, or one like it."""
        self._clock = clock
        self._devices: list[_Device] = []
        self._driver: str | None = None
        self.available = False
        self.why = ""
        self._nvml: Any = None
        try:
            module = nvml if nvml is not None else _module()
        except ImportError as e:
            self.why = f"nvidia-ml-py cannot be imported: {e}"
            return
        try:
            module.nvmlInit()
        except module.NVMLError as e:
            self.why = f"no NVIDIA driver here ({e})"
            return
        self._nvml = module
        self._open()

    def _open(self) -> None:
        nvml = self._nvml
        try:
            self._driver = _text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            self._driver = None
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as e:
            self.why = f"NVML counts no GPUs ({e})"
            return
        failed = ""
        for i in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(i)
            except nvml.NVMLError as e:  # lost, or not this user's
                failed = f"GPU {i}: {e}"
                continue
            slices = self._slices(handle, i)
            self._devices += slices or [_Device(nvml, handle, i)]
        self.available = bool(self._devices)
        if not self._devices:
            self.why = failed or "the driver shows no GPU (is the container started with --gpus?)"

    def _slices(self, handle: Any, index: int) -> list[_Device]:
        nvml = self._nvml
        out: list[_Device] = []
        try:
            current, _pending = nvml.nvmlDeviceGetMigMode(handle)
            if not current:
                return out
            most = int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
        except nvml.NVMLError:
            return out
        for k in range(most):
            try:
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, k)
            except nvml.NVMLError:
                continue
            out.append(_Device(nvml, mig, index, handle, k))
        return out

    def poll(self) -> GpuBatch:
        """All readings now; about a millisecond a GPU. Call it from a thread of its own, once a second."""
        now = self._clock()
        if not self.available:
            return GpuBatch(False, self.why, now)
        return GpuBatch(True, "", now, tuple(d.read(now) for d in self._devices), self._driver)

    def close(self) -> None:
        """Let go of NVML."""
        for device in self._devices:
            device.close()
        self._devices = []
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass
            self._nvml = None
        self.available = False
        self.why = self.why or "closed"
