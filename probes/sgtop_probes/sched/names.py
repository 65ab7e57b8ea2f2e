"""From a thread id in a kernel record to the process that an engineer knows: pid and name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .types import IDLE, UNKNOWN

_TTL_S = 30.0
_MOST = 4096


def in_initial_pid_namespace() -> bool:
    """Whether pids here are the host's: the initial pid namespace has a fixed inode number."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    except OSError:
        return True


def _read(path: str) -> str | None:
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except (OSError, ValueError):
        return None


def process_of(tid: int, proc: str = "/proc") -> int | None:
    """The process that a thread belongs to, or None when it is gone or hidden."""
    text = _read(f"{proc}/{tid}/status")
    if text:
        for line in text.splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return None


def comm_of(pid: int, proc: str = "/proc") -> str | None:
    """The name of a process's main thread."""
    text = _read(f"{proc}/{pid}/comm")
    return text.rstrip("\n") if text else None


class Names:
    """Resolves thread ids of records, with a bounded cache that forgets after half a minute."""

    def __init__(
        self, *, translate: bool = False, proc: str = "/proc", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``translate``: records carry the host's ids, and sgtop sits in a pid namespace of its own."""
        self._translate = translate
        self._proc = proc
        self._clock = clock
        self._cache: dict[tuple[int, bytes], tuple[float, int, str]] = {}
        self._hints: dict[int, int] = {}
        self._now = clock()
        self.untranslated = False
        """An id was handed out that only the host knows."""

    def tick(self) -> None:
        """A poll begins: names that are older than half a minute by now are looked up again."""
        self._now = self._clock()

    def hint(self, tid: int, pid: int) -> None:
        """A record's header said that thread ``tid`` (as in the record) belongs to ``pid`` (in our namespace)."""
        if pid > 0 and self._hints.get(tid) != pid:
            if len(self._hints) >= _MOST:
                self._hints.clear()
            self._hints[tid] = pid
            for key in [k for k in self._cache if k[0] == tid]:
                del self._cache[key]

    def resolve(self, tid: int, comm: bytes = b"") -> tuple[int, str]:
        """(pid, process name) of a thread; what cannot be known stays what the record said.

        ``comm`` as in a record, zero-padded: it is decoded only when it is new.
        """
        if tid == 0:
            return IDLE, "idle"
        if tid < 0:
            return UNKNOWN, "?"
        hit = self._cache.get((tid, comm))
        if hit is not None and hit[0] > self._now:
            return hit[1], hit[2]
        now = self._now = self._clock()
        pid, name = self._look(tid, comm.partition(b"\0")[0].decode("utf-8", "replace"))
        if len(self._cache) >= _MOST:
            self._cache.clear()
        self._cache[(tid, comm)] = (now + _TTL_S, pid, name)
        return pid, name

    def _look(self, tid: int, comm: str) -> tuple[int, str]:
        pid = self._hints.get(tid)
        if pid is None and not self._translate:
            pid = process_of(tid, self._proc)
        if pid is None:
            self.untranslated = self.untranslated or self._translate
            return tid, comm or "?"
        if pid == tid and comm and not self._translate:
            return pid, comm
        return pid, comm_of(pid, self._proc) or comm or "?"
