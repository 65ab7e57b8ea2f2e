"""Evidence for others: a recording of the ``perf`` binary, beside what sgtop itself saw in the same time.

This is not how sgtop measures; it is for a report to somebody who trusts perf. Nothing is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from . import perf, tracefs


class CaptureError(RuntimeError):
    """No recording was made: ``why``, and the command that mends it."""

    def __init__(self, why: str, mend: str) -> None:
        super().__init__(f"no recording was made: {why}")
        self.what, self.why, self.mend = "no recording was made", why, mend


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished ``perf sched record``."""

    path: str
    bytes: int
    perf_version: str
    command: tuple[str, ...]
    start_ns: int
    end_ns: int
    """CLOCK_MONOTONIC, the clock of the recording too: ``perf sched timehist --time`` takes these as seconds."""


_PACKAGES = (
    (("debian",), "sudo apt-get install linux-perf"),
    (("ubuntu",), 'sudo apt-get install linux-tools-common "linux-tools-$(uname -r)"'),
    (("fedora", "rhel", "centos", "rocky", "almalinux", "amzn"), "sudo dnf install perf"),
    (("opensuse", "suse", "sles"), "sudo zypper install perf"),
    (("arch",), "sudo pacman -S perf"),
    (("alpine",), "sudo apk add perf"),
)


def install_hint(os_release: str) -> str:
    """How this distribution's users get perf, from ``/etc/os-release``."""
    ids = " ".join(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)"?$', os_release, re.M)).split()
    for known in ids:
        for names, command in _PACKAGES:
            if known in names:
                return command
    return "install your distribution's perf (package linux-perf, linux-tools or perf)"


def find_perf(environ: Mapping[str, str] = os.environ) -> str:
    """The perf binary.

    Raises:
        CaptureError: there is none; says how to get it here.
    """
    found = shutil.which("perf", path=environ.get("PATH"))
    if found is None:
        try:
            with open("/etc/os-release") as f:
                text = f.read()
        except OSError:
            text = ""
        raise CaptureError("there is no perf binary on PATH", install_hint(text))
    return found


def record(path: str, seconds: float, *, perf_binary: str | None = None) -> Recording:
    """Record every switch of the host for a while. Blocks for that long.

    Args:
        path: where the recording goes; it must not exist.
        seconds: how long, more than 0.
        perf_binary: the binary; None: the one on PATH.

    Raises:
        CaptureError: no perf, no permission, or perf failed; with its own words.
    """
    binary = perf_binary or find_perf()
    if os.path.exists(path):
        raise CaptureError(f"{path} exists", "choose another name with --out")
    version = _version(binary)
    command = (binary, "sched", "record", "-k", "CLOCK_MONOTONIC", "-o", path, "--", "sleep", f"{seconds:g}")
    may_mount = perf.has_capability((perf.CAP_SYS_ADMIN,)) and not tracefs.mounted()
    begun = time.monotonic_ns()
    try:
        child = subprocess.Popen(
            tracefs.in_private_mount(command) if may_mount else command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as e:
        raise CaptureError(f"{binary}: {e.strerror}", "check the binary: perf --version") from e
    try:
        said, _ = child.communicate(timeout=seconds + 60)
    except BaseException:
        # perf writes its header at the end: an interrupt lets it finish what it has.
        child.send_signal(signal.SIGINT)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
        raise
    ended = time.monotonic_ns()
    size = os.path.getsize(path) if os.path.exists(path) else 0
    if child.returncode != 0 or not size:
        if size == 0 and os.path.exists(path):
            os.unlink(path)
        raise CaptureError(_last_words(said), _mend(said))
    return Recording(path, size, version, command, begun, ended)


def _version(binary: str) -> str:
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError) as e:
        raise CaptureError(f"{binary} does not run: {e}", "check the binary: perf --version") from e
    text = done.stdout.strip()
    if done.returncode != 0 or not text:
        # Ubuntu's /usr/bin/perf is a script that looks for the build of the running kernel and says so when it lacks.
        raise CaptureError(_last_words(done.stdout + done.stderr), 'sudo apt-get install "linux-tools-$(uname -r)"')
    return text


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return "perf: " + (" ".join(lines[:3]) if lines else "it failed and said nothing")


def _mend(said: str) -> str:
    if re.search(r"tracefs|debugfs|trace event|tracing", said, re.I):
        return "sudo sgtop capture …, or: sudo mount -o remount,mode=755 /sys/kernel/tracing"
    if re.search(r"permission|access|paranoid|not permitted", said, re.I):
        return f"sudo sgtop capture …, or: sudo sysctl kernel.perf_event_paranoid=-1 (now {perf.paranoid()})"
    return "run it by hand to see all it says: perf sched record -- sleep 1"
