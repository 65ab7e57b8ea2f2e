"""pidfd_open(2) and pidfd_getfd(2): a copy of a file descriptor of another process.

``pidfd_getfd`` asks for the permission to ptrace the process: that is what proves to an agent's socket pair who we are.
Linux 5.6 and later; Docker's default seccomp profile allows it only together with CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

_PIDFD_GETFD = 438  # the same number on every architecture
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def getfd(pid: int, fd: int) -> int:
    """A copy of descriptor ``fd`` of process ``pid``, close-on-exec.

    Raises:
        OSError: EPERM no permission (or seccomp), ENOSYS before Linux 5.6, EBADF, ESRCH.
    """
    pidfd = os.pidfd_open(pid)
    try:
        copy = int(_syscall(ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(fd), ctypes.c_uint(0)))
        if copy < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), f"pidfd_getfd of process {pid}")
        return copy
    finally:
        os.close(pidfd)


@lru_cache(maxsize=1)
def works() -> bool:
    """Whether this kernel and this seccomp filter know the call at all (tried on ourselves)."""
    fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.close(getfd(os.getpid(), fd))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
