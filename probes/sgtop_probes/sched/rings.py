"""A set of perf rings and the sleep until one of them fills up."""

from __future__ import annotations

import errno
import resource
import select
from collections.abc import Callable
from typing import TypeVar

from . import perf

T = TypeVar("T")

MEMORY = 16 * 1024 * 1024
"""Bytes of rings on one host, all CPUs together, as far as the smallest rings allow."""
MIN_PAGES, MAX_PAGES = 8, 256
LOCKED_PAGES = 64
"""Most without CAP_IPC_LOCK: leaves room for a second ring in the 516 KiB a CPU that a user may lock."""


def pages_for(cpus: int, may_lock: bool | None = None) -> int:
    """Pages of a ring (a power of two) on a host with so many CPUs. ``may_lock``: has CAP_IPC_LOCK; None: look."""
    if may_lock is None:
        may_lock = perf.has_capability((perf.CAP_IPC_LOCK,))
    want = min(MEMORY // max(cpus, 1) // perf.PAGE, MAX_PAGES if may_lock else LOCKED_PAGES)
    pages = MIN_PAGES
    while pages * 2 <= want:
        pages *= 2
    return pages


def pages_for_threads(threads: int, cpus: int) -> int:
    """Pages of a thread's own ring: all of them together within half of what a user may lock on so many CPUs."""
    pages = MIN_PAGES
    while pages < 128 and pages * 2 * threads <= LOCKED_PAGES * cpus:
        pages *= 2
    return pages


def with_descriptors(make: Callable[[], T]) -> T:
    """Call ``make``; when the process is out of descriptors, raise its soft limit once and call it again.

    Raises:
        OSError: what ``make`` raises.
    """
    try:
        return make()
    except OSError as e:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if e.errno != errno.EMFILE or soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return make()


class Waiter:
    """Sleeps until a ring is past its watermark."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def add(self, ring: perf.Ring) -> None:
        """Wake up for this ring too."""
        self._epoll.register(ring.fd, select.EPOLLIN)

    def remove(self, ring: perf.Ring) -> None:
        """No more; a ring that is closed needs no call."""
        try:
            self._epoll.unregister(ring.fd)
        except (OSError, ValueError):
            pass

    def wait(self, timeout_s: float) -> None:
        """At most ``timeout_s``."""
        try:
            ready = self._epoll.poll(timeout_s)
        except InterruptedError:
            return
        for fd, what in ready:
            if what & (select.EPOLLHUP | select.EPOLLERR):
                # A thread that ended leaves its event hung up for ever: it would wake us without end.
                try:
                    self._epoll.unregister(fd)
                except OSError:
                    pass

    def close(self) -> None:
        """Give the epoll descriptor back."""
        self._epoll.close()
