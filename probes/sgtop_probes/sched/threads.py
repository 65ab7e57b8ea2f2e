"""Which threads are watched: main threads of the watched processes, or all their threads; looked up each second."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .types import Watched

RESCAN_NS = 1_000_000_000


def threads_of(pid: int, proc: str = "/proc") -> list[int]:
    """Thread ids of a process, in sgtop's pid namespace; empty when it is gone."""
    try:
        return sorted(int(t) for t in os.listdir(f"{proc}/{pid}/task") if t.isdigit())
    except OSError:
        return []


class WatchList:
    """The current set of thread ids."""

    def __init__(self, watched: Sequence[Watched], every: bool, proc: str = "/proc") -> None:
        """``every``: all threads of the processes, not only the main ones."""
        self.watched = tuple(watched)
        self._every = every
        self._proc = proc
        self._next = 0
        self.tids: frozenset[int] = frozenset()
        self.rescan()

    def rescan(self) -> bool:
        """Look again; True when the set changed."""
        now: set[int] = set()
        for w in self.watched:
            alive = threads_of(w.pid, self._proc)
            if self._every:
                now.update(alive)
            elif w.tid in alive:
                now.add(w.tid)
        changed = now != self.tids
        self.tids = frozenset(now)
        return changed

    def due(self, now_ns: int) -> bool:
        """Rescan once a second; True when the set changed."""
        if now_ns < self._next:
            return False
        self._next = now_ns + RESCAN_NS
        return self.rescan()


def main_thread(pid: int, tid_inside: int, proc: str = "/proc") -> int:
    """The id in sgtop's pid namespace of a thread that calls itself ``tid_inside`` in its own; ``pid`` if unknown.

    The scheduler's loop runs on its process's main thread, but for Ray actors.
    """
    for tid in threads_of(pid, proc):
        try:
            with open(f"{proc}/{pid}/task/{tid}/status") as f:
                for line in f:
                    if line.startswith("NSpid:"):
                        if int(line.split()[-1]) == tid_inside:
                            return tid
                        break
        except (OSError, ValueError):
            continue
    return pid


def thread_count(pid: int, proc: str = "/proc") -> int | None:
    """Threads of a process, or None when it is gone."""
    try:
        with open(f"{proc}/{pid}/status") as f:
            for line in f:
                if line.startswith("Threads:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


_PF_KTHREAD = 0x00200000


def is_kernel_thread(pid: int, proc: str = "/proc") -> bool:
    """Whether ``pid`` is a thread of the kernel; False when it is gone."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as f:
            return bool(int(f.read().rpartition(b")")[2].split()[6]) & _PF_KTHREAD)
    except (OSError, IndexError, ValueError):
        return False


def exists(pid: int) -> bool:
    """Whether there is such a process here; also where /proc hides those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    return True


_PYTHON = re.compile(r"(python|pypy)[\d.]*t?$")
_TAKES_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def runs_sgtop(command: Sequence[str]) -> bool:
    """Whether a command line is that of an sgtop: the script, by its name or through Python, or ``-m sgtop_tui``."""
    if not command:
        return False
    first, *rest = command
    if os.path.basename(first) == "sgtop":
        return True
    if _PYTHON.match(os.path.basename(first)) is None:
        return False
    words = iter(rest)
    for word in words:
        if word in _TAKES_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return os.path.basename(word) == "sgtop"
        elif not word.startswith("--") and word[-1] in "mc":  # -m, -Im
            return word[-1] == "m" and next(words, "").partition(".")[0] == "sgtop_tui"
    return False


def is_sgtop(pid: int, proc: str = "/proc") -> bool:
    """Whether ``pid`` is an sgtop; False when it is gone or hidden."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as f:
            words = f.read(4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return False
    return runs_sgtop(words)


def ancestors(pid: int, proc: str = "/proc", most: int = 16) -> tuple[int, ...]:
    """Parent, its parent and so on, as far as they can be seen; empty when the process is gone."""
    out: list[int] = []
    while len(out) < most:
        try:
            with open(f"{proc}/{pid}/stat", "rb") as f:
                pid = int(f.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
        if pid <= 0:
            break
        out.append(pid)
    return tuple(out)
