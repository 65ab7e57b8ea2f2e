"""The best level that this host, this user and these processes allow, and what the next better one would need."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from .. import permissions
from . import perf
from .level_a import LevelA
from .level_b import LevelB
from .level_c import LevelC
from .level_d import LevelD
from .tracefs import TracefsError
from .types import Needs, SchedBatch, SchedSource, Watched

LEVELS = "ABCD"


def _ours(watched: Sequence[Watched]) -> bool:
    """Whether all watched processes are this user's."""
    for w in watched:
        try:
            if os.stat(f"/proc/{w.pid}").st_uid != os.geteuid():
                return False
        except OSError:
            continue
    return True


def _permission(level: str, error: OSError, watched: Sequence[Watched]) -> Needs:
    """What an error of perf_event_open means, and what mends it."""
    paranoid = perf.paranoid()
    capable = perf.has_capability((perf.CAP_PERFMON, perf.CAP_SYS_ADMIN))
    setting = "" if paranoid is None else f" (kernel.perf_event_paranoid is {paranoid})"
    if isinstance(error, perf.PerfUnavailable):
        return Needs(level, error.strerror or str(error), "none: this kernel cannot")
    if error.errno == errno.EPERM and "perf_event_open" not in str(error):
        return Needs(
            level,
            "more locked memory for the rings (kernel.perf_event_mlock_kb)",
            "sudo sysctl kernel.perf_event_mlock_kb=4096",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        wall = {"A": -1, "B": 0, "C": 2}[level]
        if level == "C" and not capable and not _ours(watched):
            return Needs(
                level,
                f"the same user as the server, or CAP_PERFMON{setting}",
                "run sgtop as the server's user, or as root: sudo sgtop …",
            )
        if capable or (paranoid is not None and paranoid <= wall):
            return Needs(
                level,
                "perf_event_open is refused although permissions allow it: a seccomp filter or a security module",
                "docker run --security-opt seccomp=unconfined … (or --cap-add PERFMON, which Docker's filter honours)",
            )
        if permissions.in_container():
            return Needs(
                level,
                f"CAP_PERFMON{setting}",
                "docker run --cap-add PERFMON … (Kubernetes: capabilities.add: [PERFMON])",
            )
        return Needs(
            level,
            f"CAP_PERFMON{setting}",
            f"sudo sgtop …, or: sudo sysctl kernel.perf_event_paranoid={wall}",
        )
    return Needs(level, error.strerror or str(error), "see docs/cpu.md")


def _needs(level: str, error: OSError, watched: Sequence[Watched]) -> Needs:
    if isinstance(error, TracefsError):
        return Needs(level, str(error), error.mend)
    return _permission(level, error, watched)


class Best:
    """A source that steps down when its level turns out too dear for this host. As ``types.SchedSource``."""

    def __init__(self, watched: Sequence[Watched], *, every_thread: bool, best: str) -> None:
        self._watched = tuple(watched)
        self._every = every_thread
        self._source = _open(self._watched, every_thread, best)
        self._lost_before = 0

    @property
    def level(self) -> str:
        """``A`` to ``D``."""
        return self._source.level

    @property
    def needs(self) -> Needs | None:
        """What the next better level would need."""
        return self._source.needs

    @property
    def lost(self) -> int:
        """Records lost since opening."""
        return self._lost_before + self._source.lost

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these from now on."""
        self._watched = tuple(watched)
        self._source.watch(watched)

    def wait(self, timeout_s: float) -> None:
        """As the source."""
        self._source.wait(timeout_s)

    def poll(self) -> SchedBatch:
        """As the source."""
        batch = self._source.poll()
        if isinstance(self._source, LevelB) and self._source.too_dear:
            why = Needs(
                "B",
                "fewer context switches: level B reads every switch of the host",
                "see level A's needs: sgtop doctor",
            )
            self._lost_before += self._source.lost
            self._source.close()
            self._source = _open(self._watched, self._every, "C", why)
        return batch

    def close(self) -> None:
        """Give everything back."""
        self._source.close()


def _open(watched: tuple[Watched, ...], every_thread: bool, best: str, needs: Needs | None = None) -> SchedSource:
    makers: tuple[tuple[str, Callable[[Needs | None], SchedSource]], ...] = (
        ("A", lambda _n: LevelA(watched, every_thread=every_thread)),
        ("B", lambda n: LevelB(watched, every_thread=every_thread, needs=n)),
        ("C", lambda n: LevelC(watched, every_thread=every_thread, needs=n)),
    )
    for level, make in makers:
        if level < best:
            continue
        try:
            return make(needs)
        except OSError as e:
            needs = _needs(level, e, watched)
    return LevelD(watched, every_thread=every_thread, needs=needs)


def open_best(watched: Sequence[Watched], *, every_thread: bool = False, best: str = "A") -> SchedSource:
    """Open the best level there is; level D always works, so this never raises for want of permission.

    Args:
        watched: the processes, by pid and main thread.
        every_thread: watch all their threads, not only the main ones.
        best: do not try better levels than this.

    Raises:
        ValueError: ``best`` is no level.
    """
    if best not in LEVELS:
        raise ValueError(f"no such level: {best}")
    return Best(watched, every_thread=every_thread, best=best)


def try_levels(watched: Sequence[Watched]) -> list[tuple[str, Needs | None]]:
    """Open and close each level once, for ``sgtop doctor``: (level, what it needs or None where it works)."""
    out: list[tuple[str, Needs | None]] = []
    makers: tuple[tuple[str, Callable[[], SchedSource]], ...] = (
        ("A", lambda: LevelA(watched, exact=False)),
        ("B", lambda: LevelB(watched)),
        ("C", lambda: LevelC(watched)),
        ("D", lambda: LevelD(watched)),
    )
    for level, make in makers:
        try:
            make().close()
        except OSError as e:
            out.append((level, _needs(level, e, watched)))
        else:
            out.append((level, None))
    return out
