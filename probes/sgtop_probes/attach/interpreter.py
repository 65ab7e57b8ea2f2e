"""Which CPython a process runs, and where its entry points are."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass

from . import elf, memory

PENDING = ("Py_AddPendingCall", "PyRun_SimpleString", "PyErr_CheckSignals")


class NoInterpreter(Exception):
    """The process holds no CPython whose entry points can be found; the text says why."""


@dataclass(frozen=True)
class Interpreter:
    """Addresses in the target."""

    version: tuple[int, int]
    """(3, 11); (0, 0) where it cannot be told."""
    path: str
    add_pending_call: int
    run_string: int
    check_signals: int
    mmap: int
    munmap: int
    runtime: int | None
    """``_PyRuntime``, for PEP 768."""


def _version(pid: int, path: str, mapped: list[memory.Mapping]) -> tuple[int, int]:
    name = os.path.basename(path)
    found = elf.find(pid, mapped, ["Py_Version"], lambda n: n == name)
    if found:  # const unsigned long, 3.11 and later: 0x030b07f0
        (value,) = struct.unpack("<Q", memory.read(pid, found[0]["Py_Version"], 8))
        return (value >> 24 & 255, value >> 16 & 255)
    for text in (path, *(m.path for m in mapped if "python" in m.path)):
        match = re.search(r"python(\d)\.(\d+)", text) or re.search(r"cpython-(\d)(\d+)", text)
        if match:
            return (int(match[1]), int(match[2]))
    return (0, 0)


def inspect(pid: int) -> Interpreter:
    """The interpreter of process ``pid``; nothing is stopped for it.

    Raises:
        NoInterpreter: not CPython, or a build without dynamic symbols. OSError: no permission, no such process.
    """
    exe = os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
    mapped = memory.mappings(pid)
    for wanted in (lambda n: n.startswith("libpython"), lambda n: n == exe, lambda n: n.startswith("python")):
        found = elf.find(pid, mapped, PENDING, wanted)
        if found:
            break
    else:
        raise NoInterpreter(f"no CPython symbols in {exe}: not Python, or a statically linked or stripped build")
    libc = elf.find(
        pid, mapped, ["mmap", "munmap"], lambda n: n.startswith(("libc.so", "libc-", "ld-musl", "libc.musl"))
    )
    if not libc:
        raise NoInterpreter("no C library in the process")
    symbols, path = found
    runtime = elf.find(pid, mapped, ["_PyRuntime"], lambda n: n == os.path.basename(path))
    return Interpreter(
        _version(pid, path, mapped),
        path,
        symbols["Py_AddPendingCall"],
        symbols["PyRun_SimpleString"],
        symbols["PyErr_CheckSignals"],
        libc[0]["mmap"],
        libc[0]["munmap"],
        runtime[0]["_PyRuntime"] if runtime else None,
    )
