"""Files and folders in a target's mount namespace, made safely: by its own user, in a fresh private folder.

A target is not trusted: it may have planted a symlink, or swap a folder while we work, and sgtop may be root. So the
walk below ``/proc/PID/root`` is one ``openat2`` with RESOLVE_IN_ROOT and RESOLVE_NO_SYMLINKS; the new folder is made
with mkdirat and opened again without following links; its owner and mode are checked on the descriptor; files are
opened with O_EXCL beneath that descriptor; ownership goes to the target's user by descriptor; and content is checked by
hash before it is used. A path is never used twice.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import secrets
import stat
import struct
from dataclasses import dataclass

from .. import procfs

_OPENAT2 = 437  # the same number on every architecture
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10
CANDIDATES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class UnsafeFolder(Exception):
    """A folder or file is not what it must be; the text says which and how."""


def openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """Open beneath a folder with RESOLVE flags; Linux 5.6 and later.

    Raises:
        OSError: ELOOP where a symlink stands in the way, ENOSYS before Linux 5.6, and the usual ones.
    """
    how = ctypes.create_string_buffer(struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, resolve))
    fd = int(_syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(directory), path.encode(), how, ctypes.c_size_t(24)))
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return fd


def open_folder(pid: int | str, path: str, *, links_above: bool = False) -> int:
    """Open folder ``path`` in the mount namespace of ``pid`` (a pid or ``self``); it is no symlink.

    ``links_above``: links on the way to it are followed, within the target's root (``/var/run`` is often one).

    Raises:
        OSError: see ``openat2``.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = path.strip("/") or "."
        if not links_above:
            return openat2(root, path, flags, RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS)
        above, _, name = path.rpartition("/")
        parent = openat2(root, above or ".", os.O_PATH | os.O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
        try:
            return openat2(parent, name, flags, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
        finally:
            os.close(parent)
    finally:
        os.close(root)


@dataclass
class PrivateFolder:
    """A fresh folder of the target's user, 0700. ``path``: in the target's eyes; ``fd``: ours."""

    path: str
    fd: int
    parent: int
    uid: int
    gid: int

    @classmethod
    def create(cls, pid: int, candidates: tuple[str, ...] = CANDIDATES) -> PrivateFolder:
        """Make one in the first of ``candidates`` that takes it.

        Raises:
            UnsafeFolder: none does (read-only, not there, a symlink), with the reason for each.
        """
        fields = procfs.status(pid)
        try:
            uid, gid = int(fields["Uid"].split()[1]), int(fields["Gid"].split()[1])
        except (KeyError, IndexError, ValueError):
            raise UnsafeFolder(f"process {pid} has ended") from None
        reasons = []
        for base in candidates:
            try:
                return cls._create_in(pid, base, uid, gid)
            except OSError as e:
                words = "a symlink stands in its place" if e.errno == errno.ELOOP else os.strerror(e.errno or 0).lower()
                reasons.append(f"{base}: {words}")
            except UnsafeFolder as e:
                reasons.append(f"{base}: {e}")
        raise UnsafeFolder("; ".join(reasons))

    @classmethod
    def _create_in(cls, pid: int, base: str, uid: int, gid: int) -> PrivateFolder:
        parent = open_folder(pid, base)
        name = f"sgtop-{secrets.token_hex(8)}"
        made = False
        try:
            _check_parent(os.fstat(parent), uid)
            os.mkdir(name, 0o700, dir_fd=parent)
            made = True
            fd = openat2(parent, name, os.O_RDONLY | os.O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
            try:
                look = os.fstat(fd)
                if look.st_uid != os.geteuid() or stat.S_IMODE(look.st_mode) & 0o077:
                    raise UnsafeFolder("the new folder was swapped for another one")
                if (uid, gid) != (look.st_uid, look.st_gid):
                    os.fchown(fd, uid, gid)
            except BaseException:
                os.close(fd)
                raise
            return cls(f"{base.rstrip('/')}/{name}", fd, parent, uid, gid)
        except BaseException:
            if made:
                try:
                    os.rmdir(name, dir_fd=parent)
                except OSError:
                    pass
            os.close(parent)
            raise

    def write(self, name: str, content: bytes) -> str:
        """A new file with ``content``, readable by the target's user alone; its path in the target's eyes.

        Raises:
            UnsafeFolder: a file of that name is there, or reads back differently. OSError: no space, …
        """
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
        except FileExistsError:
            raise UnsafeFolder(f"{self.path}/{name} exists already: somebody else writes there") from None
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            if (self.uid, self.gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, self.uid, self.gid)
            if hashlib.sha256(os.pread(fd, len(content) + 1, 0)).digest() != hashlib.sha256(content).digest():
                raise UnsafeFolder(f"{self.path}/{name} does not hold what was written")
        finally:
            os.close(fd)
        return f"{self.path}/{name}"

    def read(self, name: str, limit: int = 4096) -> bytes | None:
        """Content of a regular file of the target's user in the folder; None when there is none."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            return None
        try:
            look = os.fstat(fd)
            if not stat.S_ISREG(look.st_mode) or look.st_uid != self.uid:
                return None
            return os.read(fd, limit)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove the folder and the plain files in it. Never raises; idempotent."""
        if self.fd < 0:
            return
        try:
            for entry in os.listdir(self.fd):
                os.unlink(entry, dir_fd=self.fd)
        except OSError:
            pass
        try:
            os.rmdir(self.path.rpartition("/")[2], dir_fd=self.parent)
        except OSError:
            pass
        os.close(self.fd)
        os.close(self.parent)
        self.fd = self.parent = -1


def _check_parent(look: os.stat_result, uid: int) -> None:
    """Others may write to the folder above only where the sticky bit keeps them from renaming ours."""
    if look.st_uid not in (0, uid, os.geteuid(), 65534):  # 65534: root of a user namespace that we cannot name
        raise UnsafeFolder(f"it belongs to uid {look.st_uid}, neither root nor the server's user")
    if look.st_mode & 0o022 and not look.st_mode & stat.S_ISVTX:
        raise UnsafeFolder("others may write to it and it has no sticky bit")


def check_socket_folder(fd: int, uid: int) -> None:
    """A folder that sockets may be taken from: of the server's user or root, closed to all others.

    Raises:
        UnsafeFolder: it is not.
    """
    look = os.fstat(fd)
    if not stat.S_ISDIR(look.st_mode):
        raise UnsafeFolder("it is not a folder")
    if look.st_uid not in (uid, 0):
        raise UnsafeFolder(f"it belongs to uid {look.st_uid}, not to the server's user {uid}")
    if stat.S_IMODE(look.st_mode) & 0o077:
        raise UnsafeFolder(f"it is open to others (mode {stat.S_IMODE(look.st_mode):o}, wanted 700)")
