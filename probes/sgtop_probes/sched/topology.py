"""The host's CPUs: NUMA nodes, hyper-threads, frequency, and how near a GPU is. All from sysfs, all may be missing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from .counters import read
from .side import parse_cpus


@dataclass(frozen=True, slots=True)
class Frequency:
    """One CPU's clock. ``None`` where the kernel (a virtual machine's, often) does not say."""

    governor: str | None
    current_mhz: float | None
    maximum_mhz: float | None


@dataclass(frozen=True, slots=True)
class Topology:
    """What the kernel says of this host's CPUs. ``root`` is where sysfs was read (for tests another tree)."""

    online: tuple[int, ...]
    node_of: Mapping[int, int]
    """CPU → NUMA node."""
    siblings: Mapping[int, tuple[int, ...]]
    """CPU → the hyper-threads of its core, itself among them."""
    isolated: tuple[int, ...] = ()
    distance: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Node → node → distance; 10 is local."""
    root: str = "/"

    @property
    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes that have CPUs."""
        return tuple(sorted(set(self.node_of.values())))

    def cpus_of(self, node: int) -> tuple[int, ...]:
        """CPUs of a NUMA node."""
        return tuple(c for c in self.online if self.node_of.get(c) == node)

    def nodes_of(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """NUMA nodes of some CPUs."""
        return tuple(sorted({self.node_of[c] for c in cpus if c in self.node_of}))

    def frequency(self, cpu: int) -> Frequency:
        """One CPU's clock now."""
        base = os.path.join(self.root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq")

        def mhz(name: str) -> float | None:
            text = (read(f"{base}/{name}") or "").strip()
            return int(text) / 1000 if text.isdigit() else None

        governor = (read(f"{base}/scaling_governor") or "").strip() or None
        return Frequency(governor, mhz("scaling_cur_freq"), mhz("cpuinfo_max_freq"))

    def gpu_node(self, bus_id: str) -> int | None:
        """NUMA node of a PCI device; None where there is only one, or the firmware does not say (-1)."""
        text = (read(f"{self._pci(bus_id)}/numa_node") or "").strip()
        return int(text) if text.isdigit() else None

    def gpu_cpus(self, bus_id: str) -> tuple[int, ...]:
        """CPUs near a PCI device."""
        try:
            return tuple(parse_cpus(read(f"{self._pci(bus_id)}/local_cpulist") or ""))
        except ValueError:
            return ()

    def _pci(self, bus_id: str) -> str:
        # NVML writes an eight-digit domain and capital letters, sysfs four digits and small ones.
        domain, _, rest = bus_id.lower().partition(":")
        return os.path.join(self.root, f"sys/bus/pci/devices/{int(domain or '0', 16):04x}:{rest}")


def read_topology(root: str = "/") -> Topology:
    """The topology as it is now; what sysfs does not say is empty."""
    base = os.path.join(root, "sys/devices/system")

    def cpus(path: str) -> tuple[int, ...]:
        try:
            return tuple(parse_cpus(read(f"{base}/{path}") or ""))
        except ValueError:
            return ()

    online = cpus("cpu/online")
    if not online and root == "/":
        online = tuple(sorted(os.sched_getaffinity(0)))
    node_of: dict[int, int] = {}
    distance: dict[int, dict[int, int]] = {}
    for node in cpus("node/online"):
        for cpu in cpus(f"node/node{node}/cpulist"):
            node_of[cpu] = node
        words = (read(f"{base}/node/node{node}/distance") or "").split()
        distance[node] = dict(zip(cpus("node/online"), map(int, words), strict=False))
    siblings = {c: cpus(f"cpu/cpu{c}/topology/thread_siblings_list") or (c,) for c in online}
    return Topology(online, node_of, siblings, cpus("cpu/isolated"), distance, root)


def allowed_cpus(tid: int) -> frozenset[int] | None:
    """CPUs that a thread may use; None when it is gone."""
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError:
        return None


def cpu_list(cpus: Collection[int]) -> str:
    """CPUs as taskset and the kernel write them: ``0-3,8``."""
    out: list[str] = []
    want = sorted(cpus)
    i = 0
    while i < len(want):
        j = i
        while j + 1 < len(want) and want[j + 1] == want[j] + 1:
            j += 1
        out.append(str(want[i]) if i == j else f"{want[i]}-{want[j]}")
        i = j + 1
    return ",".join(out)
