"""The native helper and its ring: loaded once in the life of a process, then found again and reused.

CUPTI keeps the addresses of the callbacks, so the library is never unloaded and the ring never unmapped. What stays
after tracing is one library, one mapping and the ring's file descriptor; ``sys.modules["_sgtop_kernels"]`` tells the
next agent where they are.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pkgutil
import sys
import types
from collections.abc import Mapping
from typing import Any

ABI = 1
REGISTRY = "_sgtop_kernels"
SLOTS, SLOT_BYTES = 64, 512 * 1024
"""Ring of 32 MiB: at 60,000 kernels a second, flushed 20 times a second, about a second and a half."""
FLUSH_MS = 50

_SEALS = 0x1 | 0x2 | 0x4 | 0x10  # no more seals, no shrinking, no growing, no new writable mapping
_ADD_SEALS = 1033
_COUNTERS_AT = 384
COUNTERS = (
    "head", "epoch", "on", "lent", "requested", "completed", "empty", "recycled", "late", "spilled", "spilled_bytes",
    "starved", "foreign", "flushes", "flush_errors", "last_error", "dropped", "records", "kernels", "untimed",
    "malformed", "unwalked", "clock_head",
)  # fmt: skip
"""The ring header's counters in their order; agent/native/layout.h says what each counts."""


class NoHelper(RuntimeError):
    """There is no native helper to use; the text says why."""


def _library() -> bytes:
    """The helper's bytes from beside this module: a file of the installed package or a member of the injected zip."""
    try:
        data = pkgutil.get_data(__package__ or __name__.rpartition(".")[0], "sgring.so")
    except (OSError, ImportError, ValueError, AttributeError) as e:
        raise NoHelper(f"the native helper (sgring.so) is not part of this installation: {type(e).__name__}")
    if not data:
        raise NoHelper("the native helper (sgring.so) is not part of this installation")
    return data


def _load(data: bytes) -> ctypes.CDLL:
    """Loads from a memfd: no file of the server's file system is written or trusted."""
    fd = os.memfd_create("sgtop-sgring", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        # Two slashes: the loader knows libraries by the path they were opened with, and descriptors are reused.
        return ctypes.CDLL(f"/proc/self//fd/{fd}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as e:
        raise NoHelper(f"the native helper does not load here: {e}")
    finally:
        os.close(fd)


def _declare(lib: ctypes.CDLL) -> None:
    u32, u64, ptr, i = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
    for name, result, args in (
        ("sg_abi", u32, ()),
        ("sg_header_at", ptr, ()),
        ("sg_bytes", u64, ()),
        ("sg_size", u64, (u32, u64)),
        ("sg_init", i, (i, u32, u64, u32, ptr)),
        ("sg_functions", None, (ptr, ptr, ptr)),
        ("sg_start", i, (u32,)),
        ("sg_begin", u64, ()),
        ("sg_hold", i, (u32,)),
        ("sg_flush", i, (u32,)),
        ("sg_stop", i, (u32,)),
    ):
        f = getattr(lib, name)
        f.restype = result
        f.argtypes = list(args)


class Helper:
    """The loaded helper with its ring."""

    def __init__(self, lib: ctypes.CDLL, registry: Any) -> None:
        self._lib = lib
        self.fd: int = registry.fd
        """The ring, read-only, for clients; it belongs to the registry and is never closed."""
        at = lib.sg_header_at()
        self._counters = (ctypes.c_uint64 * len(COUNTERS)).from_address(at + _COUNTERS_AT)
        self.bytes = int(lib.sg_bytes())
        """Size of the ring, all of it resident; it counts against the server's memory."""
        self.request = ctypes.cast(lib.sg_request, ctypes.c_void_p).value or 0
        self.complete = ctypes.cast(lib.sg_complete, ctypes.c_void_p).value or 0

    def counters(self) -> dict[str, int]:
        """The ring header's counters, by name."""
        return dict(zip(COUNTERS, self._counters, strict=True))

    def functions(self, flush: int | None, timestamp: int | None, dropped: int | None) -> None:
        """Hand over CUPTI's functions by address and start the flush thread.

        Raises:
            NoHelper: no thread could be started.
        """
        self._lib.sg_functions(flush, timestamp, dropped)
        rc = self._lib.sg_start(FLUSH_MS)
        if rc:
            raise NoHelper(f"the flush thread did not start: {os.strerror(-rc)}")

    def begin(self) -> int:
        """A session begins; its epoch. Call just before the kinds are enabled."""
        return int(self._lib.sg_begin())

    def hold(self, timeout_ms: int) -> bool:
        """No more flushes from the helper's thread; False if one was still running after the time."""
        return bool(self._lib.sg_hold(timeout_ms) == 0)

    def flush(self, forced: bool) -> int:
        """``cuptiActivityFlushAll`` on this thread; forced only with every kind disabled. The CUptiResult."""
        return int(self._lib.sg_flush(1 if forced else 0))

    def stop(self, timeout_ms: int) -> bool:
        """End the flush thread; False if it did not end in time."""
        return bool(self._lib.sg_stop(timeout_ms) == 0)


def _make_ring(lib: ctypes.CDLL, cupti_version: int, strides: Mapping[int, int], slots: int, slot_bytes: int) -> int:
    """Make and map the ring; returns a read-only descriptor of it, the only one that stays.

    The memfd is sealed against new writable mappings (Linux 5.1 and later), so that no reader can harm it even
    through /proc/PID/fd.
    """
    table = (ctypes.c_uint32 * 64)()
    for kind, n in strides.items():
        table[kind] = n
    fd = -1
    try:
        fd = os.memfd_create("sgtop-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, int(lib.sg_size(slots, slot_bytes)))
        readers = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        rc = lib.sg_init(fd, slots, slot_bytes, cupti_version, table)
        if rc:
            os.close(readers)
            raise NoHelper(f"the ring could not be mapped: {os.strerror(-rc)}")
        try:
            fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
        except OSError:
            pass  # an older kernel: the descriptor is read-only all the same
        return readers
    except OSError as e:
        raise NoHelper(f"no memory for the ring: {e}")
    finally:
        if fd >= 0:
            os.close(fd)


def obtain(cupti_version: int, strides: Mapping[int, int], slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> Helper:
    """The process's helper: the one that an earlier agent left, or a new one with a new ring.

    Raises:
        NoHelper: none is part of this installation, it does not load here, there is no memory for the ring, or the
            one that is loaded is of another version (only a restart of the server gets rid of it).
    """
    registry = sys.modules.get(REGISTRY)
    if registry is not None:
        lib = registry.lib
        if registry.abi != ABI:
            raise NoHelper(
                f"another sgtop left its kernel helper in the server (version {registry.abi}, this one needs {ABI}); "
                "use that sgtop, or restart the server"
            )
        return Helper(lib, registry)
    lib = _load(_library())
    try:
        _declare(lib)
        abi = int(lib.sg_abi())
    except AttributeError as e:
        raise NoHelper(f"sgring.so is not the helper that this sgtop needs: {e}")
    if abi != ABI:
        raise NoHelper(f"sgring.so is of version {abi}, this sgtop needs {ABI}: install sgtop-agent again")
    fd = _make_ring(lib, cupti_version, strides, slots, slot_bytes)
    registry = types.ModuleType(REGISTRY, "sgtop's kernel helper; CUPTI holds addresses in it, so it stays.")
    registry.lib = lib  # type: ignore[attr-defined]
    registry.abi = abi  # type: ignore[attr-defined]
    registry.fd = fd  # type: ignore[attr-defined]
    sys.modules[REGISTRY] = registry
    return Helper(lib, registry)
