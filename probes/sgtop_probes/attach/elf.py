"""Addresses of dynamic symbols in another process, read from its memory.

The loader maps the dynamic section, its symbol, string and hash tables, so no file is opened: it does not matter that
the target lives in another mount namespace, or that its libraries were replaced on disk after it started.
Layout: System V ABI (generic ELF), DT_GNU_HASH as in binutils' ``bfd/elflink.c``.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Callable, Iterable, Sequence

from . import memory

_MACHINE = {"x86_64": 62, "aarch64": 183}
PT_LOAD, PT_DYNAMIC = 1, 2
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
_SYM = struct.Struct("<IBBHQQ")
_MAX_SYMBOLS = 1_000_000

Read = Callable[[int, int], bytes]


class ElfError(ValueError):
    """The mapped file is not what an ELF image of this machine looks like."""


class Image:
    """A loaded ELF file. ``base``: address of its ELF header; ``read(address, size)`` gives bytes."""

    def __init__(self, read: Read, base: int, machine: str | None = None) -> None:
        self._read = read
        header = read(base, 64)
        if header[:4] != b"\x7fELF" or header[4] != 2 or header[5] != 1:
            raise ElfError("not a 64-bit little-endian ELF file")
        if struct.unpack_from("<H", header, 18)[0] != _MACHINE.get(machine or platform.machine()):
            raise ElfError("built for another machine")
        (phoff,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        if size != 56 or not 0 < count < 1000:
            raise ElfError("no program headers")
        table = read(base + phoff, size * count)
        loads, dynamic = [], None
        for i in range(count):
            kind, _flags, offset, vaddr, _pa, _fsz, memsz, _al = struct.unpack_from("<IIQQQQQQ", table, i * size)
            if kind == PT_LOAD:
                loads.append((offset, vaddr))
            elif kind == PT_DYNAMIC:
                dynamic = (vaddr, memsz)
        if not loads or dynamic is None:
            raise ElfError("statically linked: no dynamic symbols")
        first = min(loads)
        self.bias = base - (first[1] - first[0])
        self._base = base
        if dynamic[1] > 1 << 16:
            raise ElfError("dynamic section too large")
        self._tags: dict[int, int] = {}
        raw = read(self.bias + dynamic[0], dynamic[1] & ~15)
        for tag, value in struct.iter_unpack("<QQ", raw):
            if tag == 0:
                break
            self._tags.setdefault(tag, value)
        if DT_SYMTAB not in self._tags or DT_STRTAB not in self._tags:
            raise ElfError("no dynamic symbols")

    def _address(self, tag: int) -> int:
        """A pointer of the dynamic section: glibc relocates them in place, musl does not."""
        value = self._tags[tag]
        return value if value >= self._base else value + self.bias

    def symbols(self, names: Sequence[str]) -> dict[str, int]:
        """Name → address, of those names that are defined here.

        Raises:
            ElfError: tables that make no sense. OSError: memory that cannot be read.
        """
        out = {}
        for name in names:
            found = None
            for index in self._candidates(name.encode()):
                entry = self._symbol(index)
                if entry and self._name_is(entry[0], name.encode()):
                    found = entry[1]
                    break
            if found is not None:
                out[name] = found + self.bias
        return out

    def _symbol(self, index: int) -> tuple[int, int] | None:
        name, info, _other, section, value, _size = _SYM.unpack(self._read(self._address(DT_SYMTAB) + index * 24, 24))
        return (name, value) if section and value and info & 15 in (0, 1, 2) else None

    def _name_is(self, offset: int, name: bytes) -> bool:
        if offset + len(name) >= self._tags.get(DT_STRSZ, 1 << 32):
            return False
        return self._read(self._address(DT_STRTAB) + offset, len(name) + 1) == name + b"\0"

    def _candidates(self, name: bytes) -> Iterable[int]:
        if DT_GNU_HASH in self._tags:
            return self._gnu_candidates(name)
        if DT_HASH in self._tags:
            return self._sysv_candidates(name)
        raise ElfError("no hash table of symbols")

    def _gnu_candidates(self, name: bytes) -> Iterable[int]:
        table = self._address(DT_GNU_HASH)
        buckets, first, bloom, _shift = struct.unpack("<IIII", self._read(table, 16))
        if not 0 < buckets < _MAX_SYMBOLS or bloom > _MAX_SYMBOLS:
            raise ElfError("hash table makes no sense")
        wanted = gnu_hash(name)
        bucket_at = table + 16 + 8 * bloom
        (index,) = struct.unpack("<I", self._read(bucket_at + 4 * (wanted % buckets), 4))
        if index < first:
            return
        chain_at = bucket_at + 4 * buckets
        for i in range(index, index + 10_000):
            (value,) = struct.unpack("<I", self._read(chain_at + 4 * (i - first), 4))
            if (value | 1) == (wanted | 1):
                yield i
            if value & 1:
                return

    def _sysv_candidates(self, name: bytes) -> Iterable[int]:
        table = self._address(DT_HASH)
        buckets, chains = struct.unpack("<II", self._read(table, 8))
        if not 0 < buckets < _MAX_SYMBOLS or chains > _MAX_SYMBOLS:
            raise ElfError("hash table makes no sense")
        (index,) = struct.unpack("<I", self._read(table + 8 + 4 * (sysv_hash(name) % buckets), 4))
        for _ in range(chains):
            if not 0 < index < chains:
                return
            yield index
            (index,) = struct.unpack("<I", self._read(table + 8 + 4 * (buckets + index), 4))


def gnu_hash(name: bytes) -> int:
    """DT_GNU_HASH's hash of a symbol name."""
    h = 5381
    for c in name:
        h = (h * 33 + c) & 0xFFFFFFFF
    return h


def sysv_hash(name: bytes) -> int:
    """DT_HASH's hash of a symbol name."""
    h = 0
    for c in name:
        h = (h << 4) + c
        g = h & 0xF0000000
        h = (h ^ (g >> 24)) & ~g & 0xFFFFFFFF
    return h


def find(
    pid: int, mapped: Sequence[memory.Mapping], names: Sequence[str], wanted: Callable[[str], bool]
) -> tuple[dict[str, int], str] | None:
    """(name → address, path) of the first of ``mapped`` whose base name is ``wanted`` and that defines all ``names``.

    Raises:
        OSError: the process cannot be read (no permission, gone).
    """

    def read(address: int, size: int) -> bytes:
        return memory.read(pid, address, size)

    for m in mapped:
        if m.offset or not m.perms.startswith("r") or not wanted(os.path.basename(m.path)):
            continue
        try:
            found = Image(read, m.start).symbols(names)
        except (ElfError, struct.error):
            continue
        except OSError as e:
            if e.errno == 14:  # EFAULT: a mapping that is not a loaded image (a file mapped as data)
                continue
            raise
        if len(found) == len(names):
            return found, m.path
    return None
