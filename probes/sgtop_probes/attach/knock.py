"""Meeting an agent that has just been put into a process: its socket pair, or a socket in a private folder.

**pair**: the agent names its thread ``sg:FD:NONCE``; that descriptor is copied out of the process. No file, no path,
no namespace in the way. **listen**: where ``pidfd_getfd`` is not to be had (before Linux 5.6; Docker's seccomp profile
without CAP_SYS_PTRACE), the agent listens in a fresh private folder of its own user that sgtop makes and takes away.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
from typing import Any, Protocol

from .. import procfs
from ..errors import AttachError
from . import pidfd
from .folder import PrivateFolder, UnsafeFolder


class Knock(Protocol):
    """One rendezvous."""

    opts: dict[str, Any]
    """What ``boot.start`` is told of it."""

    def poll(self) -> socket.socket | None:
        """The connected socket, None as long as the agent has not come. Raises AttachError when it cannot be taken."""

    def clean(self) -> None:
        """Take away what was made for it. Idempotent."""


def prepare(pid: int) -> Knock:
    """The better of the two for this machine; to be made before the injection.

    Raises:
        AttachError: neither is possible.
    """
    if pidfd.works():
        return Pair(pid)
    try:
        return Listen(pid)
    except UnsafeFolder as e:
        raise AttachError(
            "the agent could not be reached",
            f"pidfd_getfd is refused (seccomp, or Linux before 5.6), and there is no folder for a socket: {e}",
            "Docker: `--cap-add=SYS_PTRACE`",
            kind="permission",
        ) from None


class Pair:
    """The other end of the agent's socket pair."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._nonce = secrets.token_hex(2)
        self.opts: dict[str, Any] = {"rendezvous": "pair", "nonce": self._nonce, "dir": None}
        # Threads that cannot be the agent; a running agent that takes us in may rename its own thread.
        self._old = {tid for tid in self._threads() if not self._comm(tid).startswith("sg")}

    def _threads(self) -> set[str]:
        try:
            return set(os.listdir(f"/proc/{self._pid}/task"))
        except OSError:
            return set()

    def _comm(self, tid: str) -> str:
        return (procfs.read(f"/proc/{self._pid}/task/{tid}/comm") or "").strip()

    def poll(self) -> socket.socket | None:
        """See Knock."""
        for tid in self._threads() - self._old:
            name = self._comm(tid)
            if not name.startswith("sg:") or not name.endswith(f":{self._nonce}"):
                continue
            number = name.split(":")[1]
            if not number.isdigit():
                continue
            try:
                return socket.socket(fileno=pidfd.getfd(self._pid, int(number)))
            except OSError as e:
                if e.errno in (errno.EBADF, errno.ESRCH):
                    continue  # it gave up in this very moment
                raise AttachError("the agent's socket cannot be taken", f"pidfd_getfd: {e.strerror}") from None
        return None

    def clean(self) -> None:
        """Nothing was made."""


class Listen:
    """A socket in a private folder."""

    def __init__(self, pid: int) -> None:
        self._folder = PrivateFolder.create(pid)
        self._name = f"sgtop-{procfs.inner_pid(pid)}.sock"
        self.opts: dict[str, Any] = {"rendezvous": "listen", "nonce": secrets.token_hex(2), "dir": self._folder.path}

    def poll(self) -> socket.socket | None:
        """See Knock."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # Through the descriptor: short enough for sun_path, and nobody can swap the folder.
            sock.connect(f"/proc/self/fd/{self._folder.fd}/{self._name}")
            return sock
        except OSError:
            sock.close()
            return None

    def clean(self) -> None:
        """Remove the folder; a connection that was made lives on."""
        self._folder.remove()
