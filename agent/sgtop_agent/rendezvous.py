"""How a client meets the agent: a socket pair whose other end sgtop takes out of this process, or a listening socket.

**pair**: no file, no path, no name space in the way. The waiting thread is named ``sg:FD:NONCE``; sgtop finds the
name in /proc, takes that fd with ``pidfd_getfd`` (which needs the permission to ptrace: that is the authentication)
and says hello with the token that the injection carried.

**listen**: a socket ``sgtop-PID.sock`` in a folder of 0700 that is ours and no symlink, for peers of our uid or root,
with a token; where no injection carries one, it stands in ``sgtop-PID.token``, 0600.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import stat
import struct
import threading
from collections.abc import Callable

from .clients import Client

SUN_PATH = 107
OVERFLOW_UID = 65534
"""A peer of another user namespace; its token still has to be right."""


class RendezvousError(OSError):
    """Why there can be no socket there, in words."""


def name_thread(name: str) -> None:
    """Name the calling thread for the kernel (15 bytes)."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as f:
            f.write(name)
    except OSError:
        ctypes.CDLL(None).prctl(15, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)  # PR_SET_NAME


def pair(clock: Callable[[], int], deadline: int, label: str) -> tuple[Client, socket.socket]:
    """(our client, the end that sgtop will take)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Client(ours, clock, label, deadline), theirs


def pair_name(theirs: socket.socket, nonce: str) -> str:
    """The name of the thread that waits with this pair."""
    return f"sg:{theirs.fileno()}:{nonce}"


# --- listening -----------------------------------------------------------------------------------------


def default_folder() -> str:
    """``SGTOP_SOCKET_DIR``, else /run/user/UID/sgtop, else /tmp/sgtop-UID."""
    configured = os.environ.get("SGTOP_SOCKET_DIR")
    if configured:
        return configured
    uid = os.geteuid()
    run = f"/run/user/{uid}"
    return f"{run}/sgtop" if os.path.isdir(run) else f"/tmp/sgtop-{uid}"


def open_folder(path: str) -> int:
    """An fd of the folder, made 0700 where it is missing.

    Raises:
        RendezvousError: a symlink, no folder, another owner, or writable for others.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise RendezvousError(f"cannot make {path}: {error.strerror}") from None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RendezvousError(f"{path} is no folder of its own (a symlink is not followed): {error.strerror}") from None
    info = os.fstat(fd)
    if info.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(info.st_mode) & 0o022:
        os.close(fd)
        raise RendezvousError(f"{path} belongs to uid {info.st_uid} with mode {stat.S_IMODE(info.st_mode):04o}")
    return fd


class Listener:
    """A listening socket in a folder; ``close`` removes what it made, if it is still that."""

    def __init__(self, folder: str, pid: int, token: str | None) -> None:
        """Bind and listen. ``token`` None: make one and write it beside the socket.

        Raises:
            RendezvousError: the folder is not fit, or the socket cannot be made.
        """
        self._dir = open_folder(folder)
        self._name, self._token_name = f"sgtop-{pid}.sock", f"sgtop-{pid}.token"
        self.path = os.path.join(folder, self._name)
        self._has_token_file = token is None
        self.token = token if token is not None else secrets.token_hex(16)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._remove(self._name)  # of a process that had our pid and is dead
            self.sock.bind(f"/proc/self/fd/{self._dir}/{self._name}" if len(self.path) > SUN_PATH else self.path)
            os.chmod(self._name, 0o600, dir_fd=self._dir)
            self._inode = os.stat(self._name, dir_fd=self._dir, follow_symlinks=False).st_ino
            self.sock.listen(8)
            if self._has_token_file:
                self._write_token()
        except OSError as error:
            self.close()
            raise RendezvousError(f"cannot listen at {self.path}: {error.strerror or error}") from None

    def _write_token(self) -> None:
        """Whole or not there: sgtop may look at any moment. A link in its place is replaced, not followed."""
        draft = f".{self._token_name}.new"
        self._remove(draft)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(draft, flags, 0o600, dir_fd=self._dir)
        try:
            os.write(fd, self.token.encode())
        finally:
            os.close(fd)
        os.rename(draft, self._token_name, src_dir_fd=self._dir, dst_dir_fd=self._dir)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._dir)
        except FileNotFoundError:
            pass

    def close(self) -> None:
        """Close and remove. Idempotent."""
        self.sock.close()
        if self._dir < 0:
            return
        try:
            info = os.stat(self._name, dir_fd=self._dir, follow_symlinks=False)
            if info.st_ino == getattr(self, "_inode", -1):
                self._remove(self._name)
                if self._has_token_file:
                    self._remove(self._token_name)
        except OSError:
            pass
        os.close(self._dir)
        self._dir = -1


def allowed(peer: socket.socket) -> bool:
    """Whether the peer's uid may connect (its token is asked for as well)."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", raw)
    return uid in (os.geteuid(), 0, OVERFLOW_UID)
