"""What this host, this user and each server allow, tried rather than guessed; for what is missing the command or flag.

Nothing is stopped, nothing is injected, nothing is sent to a server but two GETs.
"""

from __future__ import annotations

import errno
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import http, permissions, procfs
from .attach import inject, pending, pep768, pidfd, plugin, ptrace
from .attach.interpreter import Interpreter
from .discovery import RankProcess, Server, find_servers
from .errors import KIND_EXIT, AttachError
from .gpu.nvml import GpuSource
from .sched.open_best import try_levels
from .sched.types import Watched

SCHEMA = 1
_SITE = re.compile(r" (/[^\n]*)/lib(?:64)?/python3[^/\n]*/site-packages/[^\n]*\.so")
OK, MISSING, LIMITED = "ok", "missing", "limited"
"""A check's outcome; ``limited``: it works, or something else takes its place, with less to see."""


@dataclass(frozen=True)
class Check:
    """One line. ``where``: ``host`` or the name of a server's rank; ``mend``: empty when nothing is missing."""

    where: str
    name: str
    outcome: str
    text: str
    mend: str = ""


@dataclass(frozen=True)
class Report:
    """All checks.

    ``attachable``: whether every running rank here can be attached to (true without a server).
    ``exit_code``: 0, or that of the first reason why one cannot: no permission, stopped or traced, not supported.
    """

    checks: tuple[Check, ...]
    servers: tuple[Server, ...]
    attachable: bool
    exit_code: int = 0

    def as_json(self) -> dict[str, Any]:
        """For ``sgtop doctor --json``."""
        return {
            "schema": SCHEMA,
            "attachable": self.attachable,
            "servers": [s.name for s in self.servers],
            "checks": [asdict(c) for c in self.checks],
        }

    def as_text(self) -> str:
        """For a terminal."""
        lines: list[str] = []
        where: str | None = None
        for c in self.checks:
            if c.where != where:
                lines += [*([""] if lines else []), c.where]
                where = c.where
            lines.append(f"  {c.outcome:<8} {c.name}: {c.text}")
            if c.mend:
                lines.append(f"           fix: {c.mend}")
        return "\n".join(lines)


def report(target: str | None = None, find: Callable[[], Sequence[Server]] = find_servers) -> Report:
    """Try everything; ``target`` narrows it to one server.

    Raises:
        TargetError: ``target`` names none.
    """
    if target:
        from .resolve import resolve

        servers: tuple[Server, ...] = (resolve(target, find),)
    else:
        servers = tuple(find())
    checks = host_checks()
    if not servers:
        checks.append(Check("host", "servers", LIMITED, "no SGLang server was found", _hidden()))
    codes: list[int] = []
    for server in servers:
        checks += server_checks(server)
        for rank in server.ranks:
            if rank.pid is not None:
                found, code = rank_checks(server, rank)
                checks += found
                codes += [code] if code else []
    return Report(tuple(checks), servers, not codes, codes[0] if codes else 0)


def _hidden() -> str:
    if os.geteuid() != 0 and procfs.read("/proc/1/stat") is None:
        return "/proc hides other users' processes (hidepid): run sgtop as root or as the server's user"
    if permissions.in_container():
        return "from inside a container only its own processes are seen: `docker run --pid=container:SERVER …`"
    return ""


# --- host ------------------------------------------------------------------------------------------


def host_checks() -> list[Check]:
    """What does not depend on a server."""
    return [
        _machine(),
        _user(),
        _yama(),
        _ptrace_call(),
        _pidfd(),
        _priority(),
        *_sched_levels(),
        _gpu(),
    ]


def _machine() -> Check:
    release, machine = platform.release(), platform.machine()
    text = f"Linux {release}, {machine}, sgtop on Python {platform.python_version()}"
    if permissions.in_container():
        text += ", in a container"
    if machine not in ptrace.ABIS:
        return Check("host", "machine", LIMITED, f"{text}: the pending call is built for x86-64 and aarch64 only",
                     "install sgtop-agent as a plugin in the server's environment")  # fmt: skip
    return Check("host", "machine", OK, text)


def _user() -> Check:
    names = {
        procfs.CAP_SYS_PTRACE: "CAP_SYS_PTRACE",
        procfs.CAP_PERFMON: "CAP_PERFMON",
        procfs.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
    }
    held = [name for number, name in names.items() if procfs.has_capability(number)]
    who = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    return Check("host", "user", OK, f"{who}, {', '.join(held) if held else 'no capability that sgtop uses'}")


def _yama() -> Check:
    scope = permissions.yama_scope()
    if scope in (None, 0):
        return Check("host", "yama", OK, "processes of the same user may be traced")
    if scope != 3 and procfs.has_capability(procfs.CAP_SYS_PTRACE):
        return Check("host", "yama", OK, f"ptrace_scope is {scope}, and CAP_SYS_PTRACE passes it")
    mend = (
        "`sudo sgtop …`, or `sudo sysctl kernel.yama.ptrace_scope=0`, or start the server with `sgtop run -- …`"
        if scope == 1
        else "`sudo sgtop …`"
        if scope == 2
        else "sgtop-agent as a plugin, or `sgtop run -- …`"
    )
    return Check("host", "yama", MISSING, f"kernel.yama.ptrace_scope is {scope}", mend)


def _ptrace_call() -> Check:
    """A seccomp filter answers before the kernel looks for the thread, so no thread is needed to find out."""
    try:
        ptrace.request(ptrace.SEIZE, 0x3FFFFFFF)
    except OSError as e:
        if e.errno == errno.ESRCH:
            return Check("host", "ptrace", OK, "the system call is allowed")
        return Check("host", "ptrace", MISSING, f"the system call is refused ({e.strerror}), probably by seccomp",
                     "Docker: `--cap-add=SYS_PTRACE`, or `--security-opt seccomp=unconfined`")  # fmt: skip
    return Check("host", "ptrace", OK, "the system call is allowed")


def _pidfd() -> Check:
    if pidfd.works():
        return Check("host", "pidfd_getfd", OK, "agents need no file and no folder")
    return Check("host", "pidfd_getfd", LIMITED, "refused (seccomp) or unknown (Linux before 5.6): a socket folder in "
                 "the server's /tmp is used instead", "Docker: `--cap-add=SYS_PTRACE`")  # fmt: skip


def _priority() -> Check:
    if procfs.has_capability(procfs.CAP_SYS_NICE):
        return Check("host", "priority", OK, "the tracer may run at real-time priority for its half millisecond")
    docker = ", or Docker: `--cap-add=SYS_NICE`" if permissions.in_container() else ""
    return Check("host", "priority", LIMITED, "on a busy host the tracer waits for a CPU while the thread that it "
                 "borrows stands still", "`sudo sgtop …`" + docker)  # fmt: skip


_LEVELS = {
    "A": "every switch of the scheduler with its cause and the process that took the CPU",
    "B": "who took the CPU, by process",
    "C": "preempted or asleep, not by whom",
    "D": "run-queue wait and suspects, from /proc",
}


def _sched_levels() -> list[Check]:
    pid = os.getpid()
    levels = try_levels([Watched(pid, pid, "sgtop")])
    best = next((level for level, needs in levels if needs is None), None)
    found = []
    for level, needs in levels:
        name = f"CPU level {level}"
        if needs is None:
            found.append(Check("host", name, OK, _LEVELS[level]))
            break  # the lower ones are not used
        outcome = LIMITED if best is not None else MISSING
        found.append(Check("host", name, outcome, f"{_LEVELS[level]}: {needs.missing}", needs.mend))
    return found


def _gpu() -> Check:
    source = GpuSource()
    try:
        batch = source.poll()
    finally:
        source.close()
    if batch.available:
        return Check("host", "GPU counters", OK, f"NVML, {len(batch.gpus)} GPUs, driver {batch.driver}")
    docker = "; Docker: `--gpus all`" if permissions.in_container() else ""
    mend = "" if "no NVIDIA driver" in batch.why else f"pip install nvidia-ml-py{docker}"
    return Check("host", "GPU counters", LIMITED, batch.why, mend)


# --- a server --------------------------------------------------------------------------------------


def server_checks(server: Server) -> list[Check]:
    """What is common to its ranks."""
    where = f"server {server.name}"
    parts = [server.state, server.args.served_name or server.args.model or "model not on its command line"]
    parts += [f"container {server.container}"] if server.container else []
    found = [Check(where, "process", OK, f"pid {server.pid}, " + ", ".join(parts))]
    away = [r.label for r in server.ranks if r.pid is None]
    if away:
        found.append(Check(where, "ranks", LIMITED, f"not on this host: {', '.join(away)}", "run sgtop there too"))
    if server.state == "starting":
        return [*found, Check(where, "HTTP", LIMITED, "it is still starting: sgtop attaches when it listens")]
    client = http.Client.of(server)
    if client is None:
        return [*found, Check(where, "HTTP", LIMITED, "it serves no HTTP that could be found")]
    try:
        client.server_info()
        found.append(Check(where, "HTTP", OK, f"{client.base} answers"))
    except http.HttpError as e:
        mend = f"export {http.KEY_VARIABLE}=…" if e.status in (401, 403) else ""
        found.append(Check(where, "HTTP", LIMITED, str(e), mend))
        return found
    try:
        metrics = client.metrics()
    except http.HttpError as e:
        metrics = {}
        found.append(Check(where, "/metrics", LIMITED, str(e)))
    else:
        on = any(name.startswith("sglang:") for name in metrics)
        found.append(
            Check(where, "/metrics", OK, f"{len(metrics)} series")
            if on
            else Check(
                where,
                "/metrics",
                LIMITED,
                "off: without an agent there is little to see",
                "start the server with --enable-metrics",
            )
        )
    return found


def rank_checks(server: Server, rank: RankProcess) -> tuple[list[Check], int]:
    """What one scheduler allows; 0 if an agent can be had there, else the exit code of why not."""
    assert rank.pid is not None
    where, pid = f"server {server.name} {rank.label} (pid {rank.pid})", rank.pid
    found: list[Check] = []
    listening = _plugin(where, pid, found)
    try:
        python = inject.inspect(pid)
    except AttachError as e:
        outcome = LIMITED if listening else MISSING
        return [*found, Check(where, "attach", outcome, str(e), e.mend)], 0 if listening else e.exit_code
    version = f"{python.version[0]}.{python.version[1]}"
    _pep768(where, pid, python, found)
    try:
        pending.refuse(pid)
    except (ptrace.TraceError, OSError) as e:
        gone = isinstance(e, (FileNotFoundError, ProcessLookupError))
        kind = e.kind if isinstance(e, ptrace.TraceError) else "gone" if gone else "permission"
        held = kind in ("hung", "traced", "gone")  # then a plugin's agent would not answer either
        outcome = LIMITED if listening and not held else MISSING
        found.append(Check(where, "attach", outcome, f"Python {version}: {e}", _held_mend(pid, kind)))
        return found, 0 if outcome == LIMITED else KIND_EXIT[kind]
    helpers = pending.sleepers(pid)
    stop = (
        "through a helper thread: the scheduler is not stopped" if helpers else "the main thread stops for about 0.5 ms"
    )
    found.append(Check(where, "attach", OK, f"pending call into Python {version}, {stop}"))
    return found, 0


def _held_mend(pid: int, kind: str) -> str:
    if kind == "hung":
        return f"kill -CONT {pid}"
    if kind == "traced":
        return "end that program, then try again"
    return ""


def _plugin(where: str, pid: int, found: list[Check]) -> bool:
    try:
        path = plugin.find(pid)
    except AttachError as e:
        found.append(Check(where, "plugin", LIMITED, str(e), e.mend))
        return False
    except plugin.NotThere as e:
        found.append(Check(where, "plugin", LIMITED, str(e), _plugin_mend(pid)))
        return False
    found.append(Check(where, "plugin", OK, f"its agent listens in {path}"))
    return True


def _plugin_mend(pid: int) -> str:
    python = _environment_python(procfs.read(f"/proc/{pid}/maps") or "")
    install = f"`{python or 'python'} -m pip install sgtop-agent`" + ("" if python else " with the server's python")
    return f"only if ptrace is not allowed: {install}, and restart the server"


def _environment_python(maps: str) -> str | None:
    """The interpreter of the environment whose extension modules are mapped.

    /proc/PID/exe would name the base interpreter of a virtual environment, where an agent is not seen by the server.
    """
    found = Counter(_SITE.findall(maps))
    return f"{found.most_common(1)[0][0]}/bin/python" if found else None


def _pep768(where: str, pid: int, python: Interpreter, found: list[Check]) -> None:
    if python.version < (3, 14):
        return
    try:
        pep768.check(pid, python)
        found.append(Check(where, "PEP 768", OK, "scripts are taken: nothing is stopped"))
    except AttachError as e:
        found.append(Check(where, "PEP 768", LIMITED, e.why, "start the server without PYTHON_DISABLE_REMOTE_DEBUG"))
