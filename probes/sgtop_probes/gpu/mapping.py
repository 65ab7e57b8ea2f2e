"""Which GPU a rank computes on.

By the driver's process list, where it shows the pids that sgtop sees. In a container it shows the host's pids or
nothing: then by the one device file that the process holds open, then by its environment and the index that the agent
says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from .types import GpuReading

_DEVICE = re.compile(r"^/dev/nvidia(\d+)$")


def open_minors(pid: int, proc: str = "/proc") -> frozenset[int]:
    """Minor numbers of the GPUs whose device files a process holds open; empty where that may not be seen."""
    found = set()
    try:
        names = os.listdir(f"{proc}/{pid}/fd")
    except OSError:
        return frozenset()
    for name in names:
        try:
            m = _DEVICE.match(os.readlink(f"{proc}/{pid}/fd/{name}"))
        except OSError:
            continue
        if m:
            found.add(int(m.group(1)))
    return frozenset(found)


def visible_devices(pid: int, proc: str = "/proc") -> tuple[str, ...] | None:
    """CUDA_VISIBLE_DEVICES of a process as a list; None where it is not set or may not be read."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as f:
            env = f.read()
    except OSError:
        return None
    for item in env.split(b"\0"):
        if item.startswith(b"CUDA_VISIBLE_DEVICES="):
            return tuple(x.strip() for x in item.partition(b"=")[2].decode("utf-8", "replace").split(",") if x.strip())
    return None


def _by_visible(gpus: Sequence[GpuReading], visible: tuple[str, ...] | None, index: int) -> str | None:
    if visible is None:
        whole = sorted((g for g in gpus if g.mig is None), key=lambda g: g.index)
        return whole[index].uuid if 0 <= index < len(whole) else None
    if not 0 <= index < len(visible):
        return None
    want = visible[index]
    for g in gpus:
        if want.isdigit():
            if g.mig is None and g.index == int(want):
                return g.uuid
        elif g.uuid.startswith(want):
            return g.uuid
    return None


def gpu_of(pid: int, gpus: Iterable[GpuReading], *, index: int | None = None, proc: str = "/proc") -> str | None:
    """UUID of the GPU (or MIG slice) that process ``pid`` computes on, or None.

    Args:
        pid: in sgtop's pid namespace.
        gpus: readings.
        index: the device's index inside the process, from the agent's hello; None or -1 where not known.
        proc: where procfs is.
    """
    readings = list(gpus)
    listed = [g.uuid for g in readings if any(p.pid == pid for p in g.processes)]
    if len(listed) == 1:
        return listed[0]
    minors = open_minors(pid, proc)
    by_minor = [g.uuid for g in readings if g.minor in minors and (not listed or g.uuid in listed)]
    if len(by_minor) == 1:
        return by_minor[0]
    if index is None or index < 0:
        return None
    return _by_visible(readings, visible_devices(pid, proc), index)


def ranks_by_gpu(
    gpus: Iterable[GpuReading], ranks: Mapping[str, tuple[int, int | None]], proc: str = "/proc"
) -> dict[str, tuple[str, ...]]:
    """UUID → labels of the ranks on it. ``ranks``: label → (pid, index inside the process or None)."""
    readings = list(gpus)
    out: dict[str, list[str]] = {}
    for label, (pid, index) in ranks.items():
        uuid = gpu_of(pid, readings, index=index, proc=proc)
        if uuid is not None:
            out.setdefault(uuid, []).append(label)
    return {uuid: tuple(labels) for uuid, labels in out.items()}
