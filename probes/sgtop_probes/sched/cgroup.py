"""CPU quota and throttling of a process's cgroup: version 1 and 2, on the host and inside a container.

A thread is held back by the quota of any cgroup above it, so the counters of all that have a quota are summed; the
tightest quota is the one shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from .counters import ProcFile, read
from .types import Throttle


@dataclass(frozen=True, slots=True)
class Mount:
    """A cgroup file system: which part of the hierarchy (``root``) is seen at ``point``."""

    version: int
    root: str
    point: str


QUOTA_EVERY = 5
"""The quota itself, and where the process is, are read again at every so many readings of its counters."""


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def mounts(mountinfo: str) -> list[Mount]:
    """The mounts that can govern CPU time: version 2, and version 1 with the ``cpu`` controller."""
    out = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        f, r = left.split(), right.split()
        if len(f) < 5 or len(r) < 3:
            continue
        if r[0] == "cgroup2":
            out.append(Mount(2, _unescape(f[3]), _unescape(f[4])))
        elif r[0] == "cgroup" and "cpu" in r[2].split(","):
            out.append(Mount(1, _unescape(f[3]), _unescape(f[4])))
    return out


def memberships(cgroup: str) -> dict[int, str]:
    """From ``/proc/PID/cgroup``: version → path in that hierarchy."""
    out: dict[int, str] = {}
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            out[2] = path
        elif "cpu" in controllers.split(","):
            out[1] = path
    return out


def _inside(mount: Mount, path: str) -> str | None:
    """Where ``path`` stands under the mount, or None where it is outside what the mount shows.

    With a cgroup namespace paths are relative to it (``/`` is the container's own cgroup); without one, a container's
    mount shows a part of the hierarchy, ``root``, and its own paths begin with that.
    """
    parts = [p for p in path.split("/") if p]
    if ".." in parts:
        return None
    rel = "/" + "/".join(parts)
    if mount.root not in ("/", "") and not mount.root.startswith("/.."):
        if rel == mount.root or rel.startswith(mount.root + "/"):
            rel = rel[len(mount.root) :] or "/"
        elif rel != "/":
            return None
    return rel


def levels(mount: Mount, path: str) -> Iterator[str]:
    """Folders from the process's cgroup up to the mount's top. A folder that is not there: the top alone."""
    rel = _inside(mount, path)
    if rel is None or not os.path.isdir(mount.point + rel):
        # A container whose cgroup file system shows itself as the root, read with a path of the host.
        yield mount.point
        return
    while True:
        yield (mount.point + rel).rstrip("/") or "/"
        if rel == "/":
            return
        rel = rel.rpartition("/")[0] or "/"


def _pairs(text: str | None) -> dict[str, int]:
    out = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if value.strip().lstrip("-").isdigit():
            out[name] = int(value)
    return out


def _quota(folder: str, version: int) -> tuple[float, int] | None:
    """(CPUs, period in µs), or None without a quota."""
    if version == 2:
        words = (read(f"{folder}/cpu.max") or "").split()
        if len(words) != 2 or words[0] == "max":
            return None
        quota, period = int(words[0]), int(words[1])
    else:
        try:
            quota = int(read(f"{folder}/cpu.cfs_quota_us") or "-1")
            period = int(read(f"{folder}/cpu.cfs_period_us") or "0")
        except ValueError:
            return None
    return (quota / period, period) if quota > 0 and period > 0 else None


class ThrottleReader:
    """The quota's counters of one process; follows it when it is moved to another cgroup."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._mountinfo = f"{proc}/self/mountinfo"
        self._membership = ProcFile(f"{proc}/{pid}/cgroup")
        self._where: str | None = None
        self._folders: list[tuple[int, str]] = []
        self._stats: list[ProcFile] = []
        self._quotas: list[tuple[float, int] | None] = []
        self._reads = 0

    def _look(self) -> None:
        """Find the folders again where the process has moved, and read their quotas."""
        where = self._membership.read()
        if where != self._where and where is not None:
            self._where = where
            paths = memberships(where)
            found: list[tuple[int, str]] = []
            for mount in mounts(read(self._mountinfo) or ""):
                if mount.version in paths:
                    found += [(mount.version, f) for f in levels(mount, paths[mount.version])]
            # Version 2 beside version 1 (hybrid) has no cpu controller: its cpu.stat lacks the quota's lines.
            self._folders = [(v, f) for v, f in dict.fromkeys(found) if "nr_periods" in (read(f"{f}/cpu.stat") or "")]
            self._stats = [ProcFile(f"{f}/cpu.stat") for _, f in self._folders]
        self._quotas = [_quota(folder, version) for version, folder in self._folders]

    def read(self) -> Throttle | None:
        """Counters now; None where no cgroup governs CPU time (or none can be seen)."""
        if self._reads % QUOTA_EVERY == 0 or not self.has_quota:
            self._look()
        self._reads += 1
        if not self._folders:
            return None
        best: tuple[float, int, str, int] | None = None
        periods = throttled = ns = 0
        for (version, folder), file, quota in zip(self._folders, self._stats, self._quotas, strict=True):
            stat = _pairs(file.read())
            # Counters of a quota that was taken away stay where they are: summing them harms nothing, and a
            # quota that comes and goes does not make the sum jump.
            periods += stat.get("nr_periods", 0)
            throttled += stat.get("nr_throttled", 0)
            ns += stat["throttled_usec"] * 1000 if "throttled_usec" in stat else stat.get("throttled_time", 0)
            if quota is not None and (best is None or quota[0] < best[0]):
                best = (quota[0], quota[1], folder, version)
        if best is None:
            version, folder = self._folders[0]
            return Throttle(folder, version, None, None, periods, throttled, ns)
        return Throttle(best[2], best[3], best[0], best[1], periods, throttled, ns)

    @property
    def has_quota(self) -> bool:
        """Whether the reading before found a quota."""
        return any(q is not None for q in self._quotas)
