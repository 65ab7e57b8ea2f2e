"""Small readings of /proc, each a function of a pid. No process there, or no permission, is ``None`` unless said."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON, CAP_SYS_NICE, CAP_CHECKPOINT_RESTORE = 19, 21, 38, 23, 40


def read(path: str | Path) -> str | None:
    """Text of a file, None when it cannot be read."""
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return None


def status(pid: int, tid: int | None = None) -> dict[str, str]:
    """/proc/PID/status as a map; empty when it cannot be read."""
    path = f"/proc/{pid}/status" if tid is None else f"/proc/{pid}/task/{tid}/status"
    fields = {}
    for line in (read(path) or "").splitlines():
        key, _, value = line.partition(":")
        fields[key] = value.strip()
    return fields


def stat(pid: int, tid: int | None = None) -> list[str] | None:
    """Fields of /proc/PID/stat after the command's name: [0] is the state (field 3 of proc(5))."""
    text = read(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
    return text.rpartition(")")[2].split() if text else None


def state(pid: int) -> str | None:
    """One letter: R S D Z T t X."""
    fields = stat(pid)
    return fields[0] if fields else None


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    return state(pid) not in (None, "Z", "X", "x")


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot: with the pid it names one process for ever."""
    fields = stat(pid)
    return int(fields[19]) if fields and len(fields) > 19 else None


def title(pid: int) -> str:
    """The process title: the command line as one string, blanks of ``setproctitle`` cut off; empty if unreadable."""
    return " ".join((read(f"/proc/{pid}/cmdline") or "").replace("\0", " ").split())


def arguments(pid: int) -> list[str]:
    """The command line as it was given."""
    text = read(f"/proc/{pid}/cmdline") or ""
    return [a for a in text.split("\0") if a]


def environment(pid: int) -> dict[str, str] | None:
    """Environment at start; None without permission."""
    text = read(f"/proc/{pid}/environ")
    if text is None:
        return None
    return dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)


def uid(pid: int) -> int | None:
    """Effective user id, in our user namespace."""
    fields = status(pid).get("Uid", "").split()
    return int(fields[1]) if len(fields) > 1 else None


def capabilities(pid: int | str = "self", which: str = "CapEff") -> int:
    """Effective capabilities (``CapBnd``: those that can be had at all) as a bit set."""
    for line in (read(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1], 16)
    return 0


def has_capability(number: int) -> bool:
    """Whether this process has capability ``number``."""
    return bool(capabilities() >> number & 1)


def namespace(pid: int | str, kind: str) -> str | None:
    """Identity of a namespace (``mnt``, ``pid``, ``user``, ``net``, ``time``)."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def shares_namespace(pid: int, kind: str) -> bool | None:
    """Whether the process is in our namespace; None when it cannot be told."""
    theirs, ours = namespace(pid, kind), namespace("self", kind)
    return None if theirs is None or ours is None else theirs == ours


def inner_pid(pid: int) -> int:
    """The pid that the process has in its own pid namespace."""
    numbers = status(pid).get("NSpid", "").split()
    return int(numbers[-1]) if numbers else pid


_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")


def container(pid: int) -> str | None:
    """The container's 64-digit id in the cgroup path (Docker, containerd, CRI-O, Podman); None outside of one."""
    for line in (read(f"/proc/{pid}/cgroup") or "").splitlines():
        match = _CONTAINER.search(line.rpartition(":")[2])
        if match:
            return match[1]
    return None


def monotonic_offset_ns(pid: int) -> int:
    """What the target's CLOCK_MONOTONIC is ahead of ours (time namespaces; 0 outside of them)."""

    def offset(who: int | str) -> int:
        for line in (read(f"/proc/{who}/timens_offsets") or "").splitlines():
            parts = line.split()
            if len(parts) == 3 and parts[0] in ("monotonic", "1"):
                return int(parts[1]) * 1_000_000_000 + int(parts[2])
        return 0

    return 0 if shares_namespace(pid, "time") is not False else offset(pid) - offset("self")


@dataclass(frozen=True)
class ThreadLook:
    """What one thread does at this moment."""

    state: str
    cpu_ticks: int
    switches: int
    """Voluntary and involuntary context switches so far."""
    wchan: str
    """Kernel function that it sleeps in; empty when it runs or may not be seen."""
    syscall: int | None
    """System call number, None in user code or where it may not be seen."""


def look(pid: int, tid: int | None = None) -> ThreadLook | None:
    """The main thread of ``pid``, or thread ``tid`` of it; None when it is gone."""
    tid = pid if tid is None else tid
    fields = stat(pid, tid)
    if not fields:
        return None
    more = status(pid, tid)
    switches = int(more.get("voluntary_ctxt_switches", "0")) + int(more.get("nonvoluntary_ctxt_switches", "0"))
    wchan = (read(f"/proc/{pid}/task/{tid}/wchan") or "").strip()
    first = (read(f"/proc/{pid}/task/{tid}/syscall") or "").split()[:1]
    number = int(first[0]) if first and first[0].lstrip("-").isdigit() and int(first[0]) >= 0 else None
    return ThreadLook(fields[0], int(fields[11]) + int(fields[12]), switches, "" if wchan == "0" else wchan, number)
