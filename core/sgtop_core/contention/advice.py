"""The next step: a command that works on this host, made from its real CPUs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sgtop_probes.sched.topology import cpu_list

from sgtop_core.model.snapshot import Cpu, Culprit, Place

_PER_CPU_KTHREADS = ("kworker/", "ksoftirqd/", "migration/", "rcuop/", "cpuhp/", "rcu_")


def _sudo(place: Place | None) -> str:
    return "sudo " if place is None or place.sudo else ""


def _taken(places: Iterable[Place]) -> set[int]:
    """CPUs on which ranks run now, with their hyper-threads."""
    out: set[int] = set()
    for p in places:
        out.update(p.siblings or (() if p.cpu is None else (p.cpu,)))
    return out


def free_cpus(place: Place, others: Iterable[Place]) -> tuple[int, ...]:
    """CPUs of the host that no rank uses now; those far from this rank's GPU first, as far as there are such."""
    taken = _taken([place, *others])
    free = [c for c in place.host_cpus if c not in taken]
    far = [c for c in free if place.near_cpus and c not in place.near_cpus]
    return tuple(far or free)


def move_culprit(culprit: Culprit, place: Place | None, others: Collection[Place]) -> str:
    """Get ``culprit`` off the rank's CPU."""
    if culprit.ended:
        free = free_cpus(place, others) if place is not None else ()
        how = f"taskset -c {cpu_list(free)}" if free else "chrt --idle 0"
        return f"it has ended; if it comes back, start it with {how} COMMAND"
    step = _move(culprit, place, others)
    # Not by `kill`: an `sgtop run` takes its server with it.
    return f"{step}   # or end that sgtop" if culprit.kind == "another-sgtop" else step


def _move(culprit: Culprit, place: Place | None, others: Collection[Place]) -> str:
    sudo = _sudo(place)
    if place is None or place.cpu is None or not place.host_cpus:
        return f"{sudo}renice -n 19 -p {culprit.pid}"
    free = free_cpus(place, others)
    if culprit.kind == "kernel" or culprit.comm.startswith(_PER_CPU_KTHREADS):
        return "no process can be moved: pin the rank away instead: " + (
            f"{sudo}taskset -cp {cpu_list(free)} SCHEDULER_PID" if free else "the host has no other CPU"
        )
    if free:
        return f"{sudo}taskset -acp {cpu_list(free)} {culprit.pid}"
    return f"{sudo}chrt --idle -a -p 0 {culprit.pid}   # no CPU is free: let it run only when the rank does not want to"


def pin_rank(pid: int | None, place: Place | None, others: Collection[Place]) -> str:
    """Give the rank's main thread CPUs that no other rank uses."""
    sudo = _sudo(place)
    if place is None or pid is None:
        return "start the server with fewer processes on its CPUs"
    taken = _taken(others)
    near = [c for c in (place.near_cpus or place.host_cpus) if c not in taken]
    if place.cpu is not None and len(near) > 1:
        return f"{sudo}taskset -cp {cpu_list(near)} {pid}"
    return f"{sudo}renice -n -10 -p {pid}"


def raise_quota(cpu: Cpu, pid: int | None) -> str:
    """Give the cgroup more CPU time."""
    p = cpu.place
    if p is None or p.quota_cpus is None or not p.quota_path:
        return "raise the container's CPU limit (docker update --cpus N, or resources.limits.cpu)"
    want = max(2.0, round(p.quota_cpus * 2))
    want = min(want, float(len(p.host_cpus))) if p.host_cpus else want
    words = "" if pid is None else f"   # cgroup of pid {pid}"
    if p.quota_version == 1:
        return f"{_sudo(p)}sh -c 'echo {int(want * 100_000)} > {p.quota_path}/cpu.cfs_quota_us'{words}"
    return f"{_sudo(p)}sh -c 'echo \"{int(want * 100_000)} 100000\" > {p.quota_path}/cpu.max'{words}"


def near_gpu(pid: int | None, place: Place, flag: str | None, nodes: Collection[int]) -> str:
    """Bring a rank to its GPU's NUMA node: now, and at the next start."""
    now = f"{_sudo(place)}taskset -acp {cpu_list(place.near_cpus)} {pid}" if pid is not None else ""
    if flag and nodes:
        return f"{now}; at the next start {flag} {' '.join(str(n) for n in nodes)} (memory moves too)"
    return f"{now}; at the next start numactl --cpunodebind={place.gpu_node} --membind={place.gpu_node}"


def fewer_threads(place: Place, ranks: int) -> str:
    """Thread pools sized for what the cgroup may really use."""
    cpus = place.quota_cpus or len(place.allowed_cpus) or len(place.host_cpus)
    each = max(1, int(cpus // max(ranks, 1)))
    return f"restart with OMP_NUM_THREADS={each} MKL_NUM_THREADS={each} (and RAYON_NUM_THREADS={each} for tokenizers)"
