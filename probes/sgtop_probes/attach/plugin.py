"""The first rung: an agent that is there already (SGLang plugin, ``sgtop run``) and listens on a socket.

Its folder: ``SGTOP_SOCKET_DIR`` in the server's environment, else ``/run/user/UID/sgtop`` or ``/tmp/sgtop-UID`` (its
user's). In it stand
``sgtop-PID.sock`` and the token ``sgtop-PID.token`` (0600), PID as the server's own pid namespace counts.
"""

from __future__ import annotations

import os
import re
import socket
import stat

from .. import client, procfs
from ..client import Connection
from ..errors import AttachError
from . import folder

DIR_VARIABLE = "SGTOP_SOCKET_DIR"


class NotThere(Exception):
    """No agent listens; the text says where it was looked for."""


def folders(pid: int) -> list[str]:
    """Where the agent of ``pid`` may listen, as paths in its mount namespace, the likeliest first."""
    name = f"sgtop-{procfs.inner_pid(pid)}.sock"
    found = []
    chosen = (procfs.environment(pid) or {}).get(DIR_VARIABLE) or os.environ.get(DIR_VARIABLE)
    if chosen:
        found.append(chosen)
    uid = procfs.uid(pid)
    inside = _inner_uid(pid, uid)
    found += [f"/run/user/{inside}/sgtop", f"/tmp/sgtop-{inside}"]
    for path in listening(pid):
        if path.endswith("/" + name) and os.path.dirname(path) not in found:
            found.append(os.path.dirname(path))
    return found


def listening(pid: int) -> list[str]:
    """Paths of unix sockets that listen in the process's network namespace."""
    paths = []
    for line in (procfs.read(f"/proc/{pid}/net/unix") or "").splitlines()[1:]:
        parts = line.split(None, 7)
        if len(parts) == 8 and parts[3] == "00010000":  # __SO_ACCEPTCON
            paths.append(parts[7])
    return paths


def _inner_uid(pid: int, uid: int | None) -> int | None:
    """The uid as the process's own user namespace calls it."""
    if uid is None:
        return None
    for line in (procfs.read(f"/proc/{pid}/uid_map") or "").splitlines():
        inside, outside, count = (int(x) for x in line.split())
        if outside <= uid < outside + count:
            return inside + uid - outside
    return uid


def connect(pid: int, nvtx: bool = False) -> Connection:
    """Connect to a listening agent of process ``pid``.

    Raises:
        NotThere: none listens. AttachError: one does, but may not be used.
    """
    sock, token, _path = _open(pid)
    return client.greet(sock, token=token, extra={"nvtx": nvtx})


def find(pid: int) -> str:
    """The folder in which an agent of process ``pid`` listens, after a connection that says nothing.

    Raises:
        NotThere, AttachError: see ``connect``.
    """
    sock, _token, path = _open(pid)
    sock.close()
    return path


def _open(pid: int) -> tuple[socket.socket, str, str]:
    name = f"sgtop-{procfs.inner_pid(pid)}"
    tried = folders(pid)
    # A folder that is mounted here too (a sidecar's volume) can be used where /proc/PID/root may not be entered.
    places: list[tuple[int | str, str]] = [(pid, path) for path in tried]
    if os.environ.get(DIR_VARIABLE):
        places.append(("self", os.environ[DIR_VARIABLE]))
    for where, path in places:
        try:
            directory = folder.open_folder(where, path, links_above=True)
        except OSError:
            continue
        try:
            found = open_in(directory, path, name, procfs.uid(pid))
        finally:
            os.close(directory)
        if found is not None:
            return *found, path
    raise NotThere(f"no agent listens in {' or '.join(tried)}{_whitelist(pid)}")


def _whitelist(pid: int) -> str:
    """SGLANG_PLUGINS that leaves us out is the usual reason for a plugin that is installed and not there."""
    allowed = (procfs.environment(pid) or {}).get("SGLANG_PLUGINS", "")
    if allowed and "sgtop" not in re.split(r"\s*,\s*", allowed.strip()):
        return f"; SGLANG_PLUGINS={allowed} lets no other plugin in: add sgtop to it"
    return ""


def open_in(directory: int, path: str, name: str, uid: int | None) -> tuple[socket.socket, str] | None:
    """(connected socket, token) of ``name``.sock in the folder ``directory``; None when nothing listens there.

    ``path`` is for messages. The socket is reached through the descriptor: its path may be longer than the 108 bytes
    of ``sun_path``, and cannot be swapped.

    Raises:
        AttachError: the folder or the token is unsafe or may not be read.
    """
    try:
        if not stat.S_ISSOCK(os.stat(f"{name}.sock", dir_fd=directory, follow_symlinks=False).st_mode):
            return None
    except OSError:
        return None
    try:
        folder.check_socket_folder(directory, uid if uid is not None else os.geteuid())
    except folder.UnsafeFolder as e:
        raise AttachError(f"the agent's socket folder {path} is not safe", str(e), f"chmod 700 {path}") from None
    try:
        fd = os.open(f"{name}.token", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(fd, "rb") as f:
            token = f.read(256).decode("ascii", "replace").strip()
    except PermissionError:
        raise AttachError(
            f"no permission to read the agent's token in {path}",
            f"sgtop runs as uid {os.geteuid()}, the server as uid {uid}",
            "run sgtop as the server's user, or as root",
            kind="permission",
        ) from None
    except OSError:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(client.HELLO_TIMEOUT_S)
        sock.connect(f"/proc/self/fd/{directory}/{name}.sock")
    except OSError:
        sock.close()
        return None  # a socket file that an ended server left behind
    return sock, token
