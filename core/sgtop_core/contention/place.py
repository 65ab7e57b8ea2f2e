"""Where a scheduler may run and how near its GPU is: a Place from what the host says. Pure."""

from __future__ import annotations

from collections.abc import Collection

from sgtop_probes.sched.topology import Frequency, Topology
from sgtop_probes.sched.types import Throttle

from sgtop_core.model.snapshot import Place


def place(
    topology: Topology,
    allowed: Collection[int] | None,
    *,
    cpu: int | None = None,
    gpu_bus_id: str | None = None,
    frequency: Frequency | None = None,
    threads: int | None = None,
    quota: Throttle | None = None,
    sudo: bool = False,
) -> Place:
    """A Place.

    Args:
        topology: the host's CPUs.
        allowed: CPUs that the main thread may use; None where that is not known.
        cpu: the CPU that it ran on last.
        gpu_bus_id: PCI id of its GPU.
        frequency: of that CPU.
        threads: of the process.
        quota: of its cgroup.
        sudo: sgtop lacks the rights to change anything.
    """
    node = topology.gpu_node(gpu_bus_id) if gpu_bus_id else None
    several = len(topology.nodes) > 1
    return Place(
        host_cpus=topology.online,
        allowed_cpus=tuple(sorted(allowed)) if allowed is not None else (),
        cpu=cpu,
        siblings=tuple(topology.siblings.get(cpu, (cpu,))) if cpu is not None else (),
        node=topology.node_of.get(cpu) if cpu is not None else None,
        gpu_node=node,
        near_cpus=topology.cpus_of(node) if node is not None and several else (),
        governor=frequency.governor if frequency else None,
        mhz=frequency.current_mhz if frequency else None,
        max_mhz=frequency.maximum_mhz if frequency else None,
        threads=threads,
        quota_cpus=quota.quota_cpus if quota else None,
        quota_path=quota.path if quota and quota.quota_cpus is not None else "",
        quota_version=quota.version if quota and quota.quota_cpus is not None else None,
        sudo=sudo,
    )
