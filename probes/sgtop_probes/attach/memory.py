"""Reading and writing the memory of another process. Needs the permission to ptrace it, and nothing else.

``process_vm_readv`` and ``process_vm_writev`` come first: ``/proc/PID/mem`` also asks for file permissions, which a
user with CAP_SYS_PTRACE alone lacks.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


for _name in ("process_vm_readv", "process_vm_writev"):
    _f = getattr(_libc, _name)
    _f.restype = ctypes.c_ssize_t
    _f.argtypes = [
        ctypes.c_int, ctypes.POINTER(_IoVec), ctypes.c_ulong, ctypes.POINTER(_IoVec), ctypes.c_ulong, ctypes.c_ulong,
    ]  # fmt: skip


def _transfer(call: str, pid: int, address: int, buffer: ctypes.Array[ctypes.c_char], size: int) -> int:
    local, remote = _IoVec(ctypes.addressof(buffer), size), _IoVec(address, size)
    n = int(getattr(_libc, call)(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    if n < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"{call} of process {pid}")
    return n


def read(pid: int, address: int, size: int) -> bytes:
    """``size`` bytes at ``address``.

    Raises:
        OSError: no permission, no such process, or a part of the range is not mapped.
    """
    buffer = ctypes.create_string_buffer(size)
    n = _transfer("process_vm_readv", pid, address, buffer, size)
    if n != size:
        raise OSError(14, f"{n} of {size} bytes could be read at {address:#x}")
    return buffer.raw


def write(pid: int, address: int, data: bytes) -> None:
    """Write ``data`` at ``address`` (which the target may write itself).

    Raises:
        OSError: no permission, no such process, or a part of the range is not mapped.
    """
    buffer = ctypes.create_string_buffer(data, len(data))
    n = _transfer("process_vm_writev", pid, address, buffer, len(data))
    if n != len(data):
        raise OSError(14, f"{n} of {len(data)} bytes could be written at {address:#x}")


@dataclass(frozen=True)
class Mapping:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    perms: str
    offset: int
    path: str


def mappings(pid: int) -> list[Mapping]:
    """File mappings of the process, in address order; ``(deleted)`` is cut off the path.

    Raises:
        OSError: no permission, no such process.
    """
    out = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
        for line in f:
            parts = line.rstrip("\n").split(None, 5)
            if len(parts) == 6 and parts[5].startswith("/"):
                start, _, end = parts[0].partition("-")
                path = parts[5].removesuffix(" (deleted)")
                out.append(Mapping(int(start, 16), int(end, 16), parts[1], int(parts[2], 16), path))
    return out
