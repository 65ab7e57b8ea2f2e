"""Listening TCP sockets and whose they are, from /proc/PID/net/tcp and tcp6 (so in any network namespace)."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import procfs

_LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A listening socket. ``address`` as text, IPv6 without brackets."""

    address: str
    port: int
    inode: int


def _address(text: str) -> str:
    """/proc/net/tcp prints each 32-bit word in host order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    raw = struct.pack(f"{'<' if sys.byteorder == 'little' else '>'}{len(words)}I", *words)
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    if raw[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def parse(text: str) -> list[Listener]:
    """Listening sockets in the text of /proc/net/tcp or tcp6."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, _, port = fields[1].rpartition(":")
            found.append(Listener(_address(address), int(port, 16), int(fields[9])))
    return found


def listening(pid: int | str = "self") -> list[Listener]:
    """Listening sockets in the network namespace of a process; IPv4 before IPv6."""
    return [s for name in ("tcp", "tcp6") for s in parse(procfs.read(f"/proc/{pid}/net/{name}") or "")]


def inodes(pid: int) -> set[int] | None:
    """Inodes of the sockets that the process holds; None without permission to look."""
    found = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    link = os.readlink(entry.path)
                except PermissionError:
                    return None  # root without CAP_SYS_PTRACE may list the folder, not follow what is in it
                except OSError:
                    continue
                if link.startswith("socket:["):
                    found.add(int(link[8:-1]))
    except OSError:
        return None
    return found


def listening_of(pids: Sequence[int], wanted: int | None) -> list[Listener]:
    """Listening sockets that one of ``pids`` holds (one network namespace).

    Without permission to look at their descriptors, port ``wanted`` counts as theirs if anything listens on it.
    """
    if not pids:
        return []
    every = listening(pids[0])
    if not every:
        return []
    theirs: set[int] = set()
    for pid in pids:
        held = inodes(pid)
        if held is None:
            return [s for s in every if s.port == wanted]
        theirs |= held
    return [s for s in every if s.inode in theirs]


def owners(port: int, pids: Iterable[int]) -> list[int]:
    """Which of ``pids`` hold a socket that listens on ``port`` in our network namespace."""
    wanted = {s.inode for s in listening() if s.port == port}
    return [pid for pid in pids if wanted & (inodes(pid) or set())]
