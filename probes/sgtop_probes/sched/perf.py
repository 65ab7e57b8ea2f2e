"""perf_event_open(2) by ctypes: events, ring buffers and the walk over their records.

Needs no perf binary and no header. Layouts are those of ``include/uapi/linux/perf_event.h``; all events are stamped
with ``CLOCK_MONOTONIC``, the clock of ``time.monotonic_ns``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable, Iterator

PAGE = mmap.PAGESIZE
_NR = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_CLOCK_MONOTONIC = 1

TYPE_SOFTWARE, TYPE_TRACEPOINT = 1, 2
SW_DUMMY = 9

SAMPLE_TID, SAMPLE_TIME, SAMPLE_CPU, SAMPLE_RAW = 1 << 1, 1 << 2, 1 << 7, 1 << 10

FLAG_DISABLED = 1 << 0
FLAG_EXCLUDE_KERNEL = 1 << 5
FLAG_WATERMARK = 1 << 14
FLAG_SAMPLE_ID_ALL = 1 << 18
FLAG_CLOCKID = 1 << 25
FLAG_CONTEXT_SWITCH = 1 << 26

RECORD_LOST, RECORD_SAMPLE, RECORD_LOST_SAMPLES, RECORD_SWITCH, RECORD_SWITCH_CPU_WIDE = 2, 9, 13, 14, 15
MISC_SWITCH_OUT, MISC_SWITCH_OUT_PREEMPT = 1 << 13, 1 << 14

_IOC_ENABLE, _IOC_DISABLE, _IOC_SET_OUTPUT, _IOC_SET_FILTER = 0x2400, 0x2401, 0x2405, 0x40082406
_FLAG_FD_CLOEXEC = 8

_libc = ctypes.CDLL(None, use_errno=True)
_U64 = struct.Struct("<Q")
_HEAD, _TAIL = 1024 // 8, 1032 // 8  # perf_event_mmap_page.data_head and data_tail, in 8-byte words


class PerfUnavailable(OSError):
    """perf_event_open does not exist here: this machine's architecture, or a kernel without it."""


def _attr(type_: int, config: int, sample_type: int, flags: int, watermark: int) -> bytearray:
    a = bytearray(128)
    flags |= FLAG_CLOCKID | (FLAG_WATERMARK if watermark else 0)
    struct.pack_into("<IIQQQQQI", a, 0, type_, len(a), config, 1, sample_type, 0, flags, watermark)
    struct.pack_into("<i", a, 92, _CLOCK_MONOTONIC)
    return a


def open_event(
    type_: int, config: int, *, pid: int, cpu: int, sample_type: int, flags: int = 0, watermark: int = 0
) -> int:
    """A disabled perf event's file descriptor (close-on-exec), one sample a happening.

    Args:
        type_: TYPE_SOFTWARE or TYPE_TRACEPOINT.
        config: SW_DUMMY or the tracepoint's id.
        pid: thread, or -1 for every one (then ``cpu`` names a CPU).
        cpu: CPU, or -1 for wherever the thread runs.
        sample_type: SAMPLE_* bits.
        flags: FLAG_* bits.
        watermark: bytes in the ring that make the descriptor readable; 0: the kernel's default.

    Raises:
        PerfUnavailable: no such system call here.
        OSError: as the kernel says; EACCES and EPERM for a missing permission.
    """
    nr = _NR.get(platform.machine())
    if nr is None or sys.byteorder != "little":
        raise PerfUnavailable(errno.ENOSYS, f"perf_event_open is not known on {platform.machine()}")
    attr = _attr(type_, config, sample_type, flags | FLAG_DISABLED, watermark)
    buf = (ctypes.c_char * len(attr)).from_buffer(attr)
    fd: int = _libc.syscall(
        ctypes.c_long(nr),
        ctypes.byref(buf),
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_FLAG_FD_CLOEXEC),
    )
    if fd < 0:
        e = ctypes.get_errno()
        if e == errno.ENOSYS:
            raise PerfUnavailable(e, "this kernel, or a seccomp filter, has no perf_event_open")
        raise OSError(e, f"perf_event_open: {os.strerror(e)}")
    return fd


def enable(fd: int) -> None:
    """Start the event."""
    fcntl.ioctl(fd, _IOC_ENABLE, 0)


def disable(fd: int) -> None:
    """Stop the event; its ring stays."""
    fcntl.ioctl(fd, _IOC_DISABLE, 0)


def redirect(fd: int, into: int) -> None:
    """Let ``fd`` (same CPU) write into the ring of ``into``, so that both keep their order."""
    fcntl.ioctl(fd, _IOC_SET_OUTPUT, into)


def set_filter(fd: int, text: str) -> None:
    """Give a tracepoint event an in-kernel filter.

    Raises:
        OSError: EINVAL where the filter does not fit this tracepoint.
    """
    buf = ctypes.create_string_buffer(text.encode())
    if _libc.ioctl(ctypes.c_int(fd), ctypes.c_ulong(_IOC_SET_FILTER), buf) != 0:
        e = ctypes.get_errno()
        raise OSError(e, f"perf filter: {os.strerror(e)}")


_fence = threading.Lock()


def _barrier_strong() -> None:
    # Python has no barrier. Acquire, release, acquire of a lock orders the load of data_head before the loads of the
    # data on machines that reorder loads (a release does not move before it, an acquire not behind it).
    _fence.acquire()
    _fence.release()
    _fence.acquire()
    _fence.release()


def _barrier_none() -> None:
    """x86 does not reorder loads."""


_barrier: Callable[[], None] = _barrier_none if platform.machine() == "x86_64" else _barrier_strong


class Ring:
    """The mapped ring of one event; it owns the descriptor. The kernel never overwrites what was not read yet."""

    def __init__(self, fd: int, pages: int) -> None:
        """Map ``pages`` (a power of two) pages of data.

        Raises:
            OSError: EPERM when the user's locked-memory allowance (kernel.perf_event_mlock_kb) is used up.
        """
        self.fd = fd
        self.size = pages * PAGE
        self._map = mmap.mmap(fd, PAGE + self.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._words = memoryview(self._map).cast("Q")
        self._data = memoryview(self._map)[PAGE:]

    def read(self) -> bytes:
        """A copy of all records since the read before, and their room given back."""
        head, tail = self._words[_HEAD], self._words[_TAIL]
        if head == tail:
            return b""
        _barrier()
        start, end = tail % self.size, head % self.size
        # Around the end in two pieces; so is a ring that is full, where both ends are equal.
        parts = (self._data[start:end],) if start < end else (self._data[start:], self._data[:end])
        data = b"".join(parts)
        self._words[_TAIL] = head
        return data

    def close(self) -> None:
        """Unmap and close."""
        self._words.release()
        self._data.release()
        self._map.close()
        os.close(self.fd)


_HEADER = struct.Struct("<IHH")


def records(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(type, misc, offset of the body, offset of the end) of each whole record in ``data``.

    Stops at the first thing that is no record: a length under 8 or past the end. What is left then is garbage or cut
    off; a ring that the kernel writes holds whole records only.
    """
    i, n = 0, len(data)
    unpack = _HEADER.unpack_from
    while i + 8 <= n:
        type_, misc, size = unpack(data, i)
        end = i + size
        if size < 8 or end > n:
            return
        yield type_, misc, i + 8, end
        i = end


def lost_in(type_: int, data: bytes, body: int, end: int) -> int:
    """How many records a LOST or LOST_SAMPLES record stands for; 0 for every other type or a record cut short."""
    if type_ == RECORD_LOST and end - body >= 16:
        return int(_U64.unpack_from(data, body + 8)[0])
    if type_ == RECORD_LOST_SAMPLES and end - body >= 8:
        return int(_U64.unpack_from(data, body)[0])
    return 0


def paranoid() -> int | None:
    """kernel.perf_event_paranoid, or None where it cannot be read."""
    try:
        with open("/proc/sys/kernel/perf_event_paranoid") as f:
            return int(f.read())
    except (OSError, ValueError):
        return None


def has_capability(name_bits: tuple[int, ...]) -> bool:
    """Whether this process has one of the capabilities (by bit number) in effect."""
    try:
        with open("/proc/self/status") as f:
            for line in f:
                if line.startswith("CapEff:"):
                    mask = int(line.split()[1], 16)
                    return any(mask >> bit & 1 for bit in name_bits)
    except (OSError, ValueError):
        pass
    return False


CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_PERFMON = 14, 21, 38
