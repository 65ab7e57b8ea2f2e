"""Why this user may not look into that process, and the command or flag that lets them. Used by attach and doctor."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import procfs

_MARKS = ("/.dockerenv", "/run/.containerenv")
_HOST_NAMESPACES = {"cgroup": 0xEFFFFFFB, "pid": 0xEFFFFFFC, "uts": 0xEFFFFFFE, "ipc": 0xEFFFFFFF}
"""The kernel's first namespaces (include/linux/proc_ns.h); each container is outside of at least one."""
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True)
class Refusal:
    """Reason and remedy, in words."""

    why: str
    mend: str


def yama_scope() -> int | None:
    """kernel.yama.ptrace_scope: 0 same user, 1 descendants only, 2 CAP_SYS_PTRACE only, 3 never; None without yama."""
    text = procfs.read(YAMA)
    return int(text) if text else None


def in_container() -> bool:
    """Whether sgtop itself runs in a container.

    A marker file alone says little: a virtual machine whose disk was made from an image has it too.
    """
    if procfs.container(os.getpid()):
        return True
    marked = any(os.path.exists(path) for path in _MARKS) or "KUBERNETES_SERVICE_HOST" in os.environ
    return marked and not _on_the_host()


def _on_the_host() -> bool:
    return all(procfs.namespace("self", kind) == f"{kind}:[{number}]" for kind, number in _HOST_NAMESPACES.items())


def ptrace_refusal(pid: int) -> Refusal:
    """The most likely reason that the kernel refuses ptrace of ``pid`` (it never says which)."""
    root_has_it = procfs.capabilities(which="CapBnd") >> procfs.CAP_SYS_PTRACE & 1
    if not in_container():
        grant = "run it as root: `sudo sgtop …`"
    elif os.geteuid() != 0 and root_has_it:
        grant = "run it as root in here: `sudo sgtop …`, or from the host `docker exec -u 0 -it NAME sgtop …`"
    else:
        grant = (
            "start this container with `--cap-add=SYS_PTRACE` (Kubernetes: securityContext.capabilities.add: "
            "[SYS_PTRACE]), or run sgtop as root on the host"
        )
    privileged = procfs.has_capability(procfs.CAP_SYS_PTRACE)
    scope = yama_scope()
    theirs, ours = procfs.uid(pid), os.geteuid()
    if scope == 3:
        return Refusal(
            "kernel.yama.ptrace_scope is 3: nobody may trace until the next boot",
            "install sgtop-agent as a plugin in the server's environment, or start the server with `sgtop run -- …`",
        )
    if privileged:
        if procfs.shares_namespace(pid, "user") is False:
            return Refusal(
                "CAP_SYS_PTRACE is held in another user namespace than the process's",
                "run sgtop on the host, or in the process's own user namespace",
            )
        return Refusal(
            "a security module (SELinux, AppArmor) or a seccomp filter refuses it",
            "Docker: `--security-opt apparmor=unconfined`; SELinux: `setsebool deny_ptrace 0`; gVisor and the like: "
            "install sgtop-agent as a plugin",
        )
    if theirs is not None and theirs != ours:
        user = "root" if ours == 0 else f"uid {ours}"
        return Refusal(f"sgtop runs as {user}, the server as uid {theirs}, and sgtop lacks CAP_SYS_PTRACE", grant)
    if scope == 2 or scope == 1:
        return Refusal(
            f"kernel.yama.ptrace_scope is {scope}: "
            + ("only a process's ancestors may trace it" if scope == 1 else "tracing needs CAP_SYS_PTRACE"),
            f"{grant}; or start the server with `sgtop run -- …`"
            + ("; or `sudo sysctl kernel.yama.ptrace_scope=0`" if scope == 1 else ""),
        )
    if not _dumpable(pid, theirs):
        return Refusal("the process has made itself undumpable (prctl PR_SET_DUMPABLE, or a set-uid program)", grant)
    return Refusal("the process has capabilities that sgtop lacks, or a seccomp filter refuses ptrace", grant)


def _dumpable(pid: int, uid: int | None) -> bool:
    """The files below /proc/PID of an undumpable process belong to root."""
    try:
        return uid in (None, 0) or os.stat(f"/proc/{pid}/task").st_uid == uid
    except OSError:
        return True
