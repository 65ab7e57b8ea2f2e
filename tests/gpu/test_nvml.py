"""GPU readings from a driver that is there, half there, or not there; MIG; and which rank sits on which GPU."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest
from sgtop_probes.gpu.mapping import gpu_of, open_minors, ranks_by_gpu, visible_devices
from sgtop_probes.gpu.nvml import PCIE_EVERY_NS, GpuSource
from sgtop_probes.gpu.types import REASONS, GpuProcess, GpuReading, reasons

from .fake_nvml import FakeNvml

S = 1_000_000_000
MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = S

    def __call__(self) -> int:
        return self.now


def source(nvml: Any) -> tuple[GpuSource, Clock]:
    clock = Clock()
    return GpuSource(nvml, clock), clock


def test_a_hopper_gpu() -> None:
    nvml = FakeNvml()
    s, clock = source(nvml)
    assert s.available
    first = s.poll()
    assert first.driver == "580.159.04"
    assert [g.uuid for g in first.gpus] == ["GPU-0", "GPU-1"]
    g = first.gpus[0]
    assert g.sm_busy is None
    assert "first sample" in g.missing["sm_busy"]
    clock.now += S
    g = s.poll().gpus[0]
    assert (g.name, g.bus_id, g.minor, g.index, g.mig) == ("NVIDIA H200", "00000000:00:00.0", 0, 0, None)
    assert (g.kernel_running, g.memory_busy) == (0.97, 0.4)
    assert (g.memory_used_bytes, g.memory_total_bytes) == (100 << 30, 141 << 30)
    assert (g.sm_clock_mhz, g.sm_clock_max_mhz, g.memory_clock_mhz) == (1755, 1980, 3201)
    assert g.throttle_reasons == ("power cap",)
    assert (g.power_w, g.power_limit_w, g.temperature_c) == (345.6, 700.0, 55)
    assert (g.pcie_generation, g.pcie_width, g.pcie_width_max) == (5, 8, 16)
    assert (g.sm_busy, g.sm_occupancy, g.tensor_busy, g.dram_busy) == pytest.approx((0.8, 0.25, 0.4, 0.6))
    assert (g.pcie_tx_bytes_per_s, g.pcie_rx_bytes_per_s) == (100 * MIB, 50 * MIB)
    assert (g.nvlink_rx_bytes_per_s, g.nvlink_tx_bytes_per_s) == (10 * MIB, 20 * MIB)
    assert g.processes == (GpuProcess(4242, 10 << 30),)
    assert g.missing == {}
    s.close()
    assert nvml.samples == 0
    assert nvml.shut
    assert s.poll().available is False
    s.close()


def test_samples_closer_than_a_tenth_of_a_second_are_not_taken() -> None:
    nvml = FakeNvml(1)
    s, clock = source(nvml)
    s.poll()
    clock.now += S
    busy = s.poll().gpus[0].sm_busy
    taken = len(nvml.taken)
    clock.now += 50_000_000
    assert s.poll().gpus[0].sm_busy == busy
    assert len(nvml.taken) == taken


CELLS = {
    "nvmlDeviceGetUtilizationRates": ("kernel_running", "memory_busy"),
    "nvmlDeviceGetMemoryInfo": ("memory_used_bytes", "memory_total_bytes"),
    "nvmlDeviceGetClockInfo": ("sm_clock_mhz", "memory_clock_mhz"),
    "nvmlDeviceGetMaxClockInfo": ("sm_clock_max_mhz",),
    "nvmlDeviceGetPowerUsage": ("power_w",),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_w",),
    "nvmlDeviceGetTemperature": ("temperature_c",),
    "nvmlDeviceGetCurrPcieLinkWidth": ("pcie_width",),
    "nvmlGpmSampleGet": ("sm_busy",),
    "nvmlGpmMetricsGet": ("sm_busy",),
}


@pytest.mark.parametrize("call", CELLS)
def test_a_call_that_fails_costs_its_cells_alone(call: str) -> None:
    nvml = FakeNvml(1)
    s, clock = source(nvml)
    s.poll()
    clock.now += S
    whole = s.poll().gpus[0]
    nvml.fail[call] = 3
    clock.now += S
    g = s.poll().gpus[0]
    for field in CELLS[call]:
        assert getattr(g, field) is None
        assert "Not Supported" in g.missing[field]
    others = {f for f in GpuReading.__slots__ if f not in ("missing", "time", *CELLS[call])}
    if not call.startswith("nvmlGpm"):
        assert all(getattr(g, f) == getattr(whole, f) for f in others)


def test_a_metric_that_fails_costs_itself_alone() -> None:
    nvml = FakeNvml(1)
    nvml.metric_errors = {5: 3}
    s, clock = source(nvml)
    s.poll()
    clock.now += S
    g = s.poll().gpus[0]
    assert g.tensor_busy is None
    assert g.missing["tensor_busy"] == "Not Supported"
    assert g.sm_busy == pytest.approx(0.8)


def test_before_hopper() -> None:
    nvml = FakeNvml(1, gpm=False)
    s, clock = source(nvml)
    nvml.nvlink_kib = 1000
    g = s.poll().gpus[0]
    assert g.missing["sm_busy"] == "GPM needs Hopper or later"
    assert (g.pcie_tx_bytes_per_s, g.pcie_rx_bytes_per_s) == (2_000 * 1024, 1_000 * 1024)
    assert g.nvlink_rx_bytes_per_s is None
    nvml.nvlink_kib, clock.now = 1500, clock.now + S // 2
    calls = nvml.calls.count("nvmlDeviceGetPcieThroughput")
    g = s.poll().gpus[0]
    assert g.nvlink_rx_bytes_per_s == 1000 * 1024
    assert "nvlink_rx_bytes_per_s" not in g.missing
    assert nvml.calls.count("nvmlDeviceGetPcieThroughput") == calls, "it blocks for 20 ms: seldom"
    clock.now += PCIE_EVERY_NS
    nvml.nvlink_kib = 10  # the driver was reset
    assert s.poll().gpus[0].nvlink_rx_bytes_per_s is None
    assert nvml.calls.count("nvmlDeviceGetPcieThroughput") == calls + 2


def test_an_old_driver_knows_the_reasons_by_another_name() -> None:
    nvml = FakeNvml(1)
    nvml.fail["nvmlDeviceGetCurrentClocksEventReasons"] = 13
    s, _ = source(nvml)
    assert s.poll().gpus[0].throttle_reasons == ("power cap",)
    nvml.fail["nvmlDeviceGetCurrentClocksThrottleReasons"] = 3
    g = s.poll().gpus[0]
    assert g.throttle_reasons is None
    assert g.missing["throttle_reasons"] == "Not Supported"


def test_mig_slices_take_the_place_of_their_gpu() -> None:
    nvml = FakeNvml(1, mig=(0, 2))
    s, clock = source(nvml)
    nvml.fail["nvmlDeviceGetUtilizationRates"] = 3
    s.poll()
    clock.now += S
    batch = s.poll()
    assert [(g.uuid, g.mig, g.index) for g in batch.gpus] == [("MIG-0-0", 0, 0), ("MIG-0-2", 2, 0)]
    g = batch.gpus[0]
    assert g.kernel_running is None
    assert g.sm_busy == pytest.approx(0.8)
    assert (0, 7) in nvml.taken
    assert g.sm_clock_max_mhz == 1980
    assert g.bus_id == "00000000:00:00.0"


@pytest.mark.parametrize(
    ("break_", "says"),
    [
        ({"nvmlInit": 12}, "no NVIDIA driver here (NVML Shared Library Not Found)"),
        ({"nvmlInit": 9}, "no NVIDIA driver here (Driver Not Loaded)"),
        ({"nvmlDeviceGetCount": 3}, "NVML counts no GPUs (Not Supported)"),
        ({("nvmlDeviceGetHandleByIndex", 0): 15, ("nvmlDeviceGetHandleByIndex", 1): 15}, "GPU 1: GPU is lost"),
    ],
)
def test_no_driver_no_gpu(break_: dict[Any, int], says: str) -> None:
    nvml = FakeNvml()
    nvml.fail = break_
    s, _ = source(nvml)
    batch = s.poll()
    assert (batch.available, batch.why, batch.gpus) == (False, says, ())
    s.close()


def test_a_container_without_gpus() -> None:
    s, _ = source(FakeNvml(0))
    assert "--gpus" in s.poll().why


def test_one_lost_gpu_does_not_hide_the_others() -> None:
    nvml = FakeNvml()
    nvml.fail = {("nvmlDeviceGetHandleByIndex", 0): 15, "nvmlSystemGetDriverVersion": 3}
    s, _ = source(nvml)
    batch = s.poll()
    assert [g.index for g in batch.gpus] == [1]
    assert batch.driver is None


def test_samples_that_cannot_be_had() -> None:
    nvml = FakeNvml(1)
    nvml.fail["nvmlGpmSampleAlloc"] = 20
    s, _ = source(nvml)
    assert "GPM: error 20" in s.poll().gpus[0].missing["sm_busy"]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kw: Any) -> Any:
        if name == "pynvml":
            raise ImportError("no such package")
        return real(name, *args, **kw)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert "nvidia-ml-py" in GpuSource().poll().why


def test_on_this_host_with_the_real_package() -> None:
    s = GpuSource()
    batch = s.poll()
    assert batch.available or batch.why
    s.close()


def test_reasons_by_name() -> None:
    assert reasons(0) == ()
    assert reasons(0x1 | 0x40) == ("idle", "hardware thermal")
    assert reasons(1 << 20) == ("reason 0x100000",)
    assert len(reasons(sum(bit for bit, _ in REASONS))) == len(REASONS)


# --- ranks --------------------------------------------------------------------------------------------


def gpu(index: int, *, pids: tuple[int, ...] = (), minor: int | None = None, mig: int | None = None) -> GpuReading:
    uuid = f"GPU-{index}abc" if mig is None else f"MIG-{index}-{mig}"
    minor = index if minor is None else minor
    return GpuReading(index, uuid, "H200", "", minor, 0, mig, processes=tuple(GpuProcess(p, None) for p in pids))


def process(proc: Path, pid: int, devices: tuple[str, ...] = (), env: bytes = b"") -> None:
    fd = proc / str(pid) / "fd"
    fd.mkdir(parents=True)
    for i, device in enumerate(devices):
        os.symlink(device, fd / str(i))
    (proc / str(pid) / "environ").write_bytes(env)


def test_by_the_drivers_list(tmp_path: Path) -> None:
    gpus = [gpu(0, pids=(5,)), gpu(1, pids=(6, 7))]
    assert gpu_of(6, gpus, proc=str(tmp_path)) == "GPU-1abc"
    assert ranks_by_gpu(gpus, {"TP0": (5, None), "TP1": (7, None), "TP2": (9, None)}, proc=str(tmp_path)) == {
        "GPU-0abc": ("TP0",),
        "GPU-1abc": ("TP1",),
    }


def test_by_the_one_open_device_file(tmp_path: Path) -> None:
    """In a container the driver's list shows the host's pids."""
    process(tmp_path, 5, ("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/null"))
    gpus = [gpu(0, minor=2, pids=(99,)), gpu(1, minor=3)]
    assert open_minors(5, str(tmp_path)) == {3}
    assert gpu_of(5, gpus, proc=str(tmp_path)) == "GPU-1abc"


def test_by_environment_and_index(tmp_path: Path) -> None:
    both = ("/dev/nvidia0", "/dev/nvidia1")
    process(tmp_path, 5, both, b"A=1\0CUDA_VISIBLE_DEVICES=1,0\0")
    process(tmp_path, 6, both, b"CUDA_VISIBLE_DEVICES=GPU-1a\0")
    process(tmp_path, 7, both)
    gpus = [gpu(0), gpu(1)]
    assert visible_devices(5, str(tmp_path)) == ("1", "0")
    assert gpu_of(5, gpus, index=0, proc=str(tmp_path)) == "GPU-1abc"
    assert gpu_of(6, gpus, index=0, proc=str(tmp_path)) == "GPU-1abc"
    assert gpu_of(7, gpus, index=1, proc=str(tmp_path)) == "GPU-1abc"
    assert gpu_of(7, gpus, proc=str(tmp_path)) is None, "nothing says which"
    assert gpu_of(5, gpus, index=7, proc=str(tmp_path)) is None
    assert gpu_of(7, gpus, index=9, proc=str(tmp_path)) is None
    assert gpu_of(8, gpus, index=-1, proc=str(tmp_path)) is None


def test_a_process_on_two_gpus_is_placed_by_what_else_is_known(tmp_path: Path) -> None:
    """Peer access puts a rank on several lists."""
    process(tmp_path, 5, ("/dev/nvidia1",))
    assert gpu_of(5, [gpu(0, pids=(5,)), gpu(1, pids=(5,))], proc=str(tmp_path)) == "GPU-1abc"
