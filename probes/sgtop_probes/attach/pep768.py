"""PEP 768 (``sys.remote_exec``) for a CPython 3.14 or later target, from any Python: the target never stops.

The target's debug offsets say where the main thread's script path and flags stand; a few bytes are written there, and
the interpreter runs the script between two byte codes. Offsets: ``Include/internal/pycore_debug_offsets.h`` of 3.14.
The script and the agent's block are files, in a fresh private folder of the target's user that goes away at once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AttachError
from . import memory, payload
from .folder import PrivateFolder, UnsafeFolder
from .interpreter import Interpreter

_COOKIE = b"xdebugpy"
_HEADER = 2048
_STOP_BIT = 1 << 5
"""_PY_EVAL_PLEASE_STOP_BIT of Include/internal/pycore_ceval.h."""


@dataclass(frozen=True)
class Offsets:
    """What PEP 768 needs of ``_Py_DebugOffsets``."""

    version: tuple[int, int]
    interpreters_head: int
    threads_main: int
    eval_breaker: int
    support: int
    enabled: int
    pending: int
    path: int
    path_size: int


def parse(header: bytes) -> Offsets:
    """Offsets from the first bytes of ``_PyRuntime``.

    Raises:
        AttachError: an older interpreter, or a layout that is not known.
    """
    if header[:8] != _COOKIE:
        raise AttachError(
            "no PEP 768", "the interpreter is older than 3.13; PEP 768 came with 3.14", kind="unsupported"
        )
    words = struct.unpack_from(f"<{len(header) // 8}Q", header)
    version = (words[1] >> 24 & 255, words[1] >> 16 & 255)
    if version < (3, 14):
        why = f"the server runs Python {version[0]}.{version[1]}; PEP 768 came with 3.14"
        raise AttachError("no PEP 768", why, kind="unsupported")
    # The group debugger_support is {eval_breaker, remote_debugger_support, remote_debugging_enabled, pending = 0,
    # path = 4, path_size = 512}; its place moves between builds, its last three values do not.
    for i in range(23, len(words) - 2):
        if words[i : i + 3] == (0, 4, 512):
            return Offsets(version, words[5], words[10], *words[i - 3 : i + 3])
    raise AttachError("no PEP 768", "the interpreter's debug offsets have an unknown layout", kind="unsupported")


def check(pid: int, python: Interpreter) -> Offsets:
    """Whether the target takes scripts; nothing is changed.

    Raises:
        AttachError: too old, disabled, or unreadable.
    """
    if python.runtime is None:
        raise AttachError("no PEP 768", "the interpreter does not export _PyRuntime", kind="unsupported")
    try:
        offsets = parse(memory.read(pid, python.runtime, _HEADER))
        interp = _word(pid, python.runtime + offsets.interpreters_head)
        (enabled,) = struct.unpack("<i", memory.read(pid, interp + offsets.enabled, 4))
    except OSError as e:
        raise AttachError("no PEP 768", str(e), kind="unsupported") from None
    if enabled != 1:
        raise AttachError(
            "no PEP 768",
            "remote debugging is switched off in the server (PYTHON_DISABLE_REMOTE_DEBUG, -X disable-remote-debug, or "
            "a build without it)",
            kind="unsupported",
        )
    return offsets


def _word(pid: int, address: int) -> int:
    return int(struct.unpack("<Q", memory.read(pid, address, 8))[0])


@dataclass
class Handed:
    """A script that was handed over; ``clean`` takes its files away."""

    folder: PrivateFolder
    name: str

    def problem(self) -> str | None:
        """What the target's loader reported, None as long as nothing went wrong."""
        text = self.folder.read(f"{self.name}.error")
        return text.decode("utf-8", "replace") if text else None

    def clean(self) -> None:
        """Remove the files. A script that runs later finds none and does nothing."""
        self.folder.remove()


def execute(pid: int, python: Interpreter, agent: payload.Agent, opts: Mapping[str, Any], deadline_ns: int) -> Handed:
    """Have the target's main thread start the agent.

    Raises:
        AttachError: not possible; nothing is left behind.
    """
    offsets = check(pid, python)
    try:
        folder = PrivateFolder.create(pid)
    except UnsafeFolder as e:
        raise AttachError("no PEP 768", f"no folder for the script: {e}", kind="unsupported") from None
    handed = Handed(folder, "agent.bin")
    try:
        blob = folder.write(handed.name, agent.blob)
        script = folder.write("start.py", payload.for_file(agent, opts, deadline_ns, blob)).encode() + b"\0"
        if len(script) > offsets.path_size:
            raise AttachError("no PEP 768", "the script's path is too long", kind="unsupported")
        assert python.runtime is not None  # check() saw it
        thread = _word(pid, _word(pid, python.runtime + offsets.interpreters_head) + offsets.threads_main)
        memory.write(pid, thread + offsets.support + offsets.path, script)
        memory.write(pid, thread + offsets.support + offsets.pending, struct.pack("<i", 1))
        breaker = thread + offsets.eval_breaker
        # Not atomic, as in CPython's own Modules/_remote_debugging: a bit that the target sets between the two is
        # set again by whoever wanted it at the latest when the GIL changes hands.
        memory.write(pid, breaker, struct.pack("<Q", _word(pid, breaker) | _STOP_BIT))
    except UnsafeFolder as e:
        handed.clean()
        raise AttachError("no PEP 768", str(e), kind="unsupported") from None
    except OSError as e:
        handed.clean()
        raise AttachError("no PEP 768", str(e)) from None
    except BaseException:
        handed.clean()
        raise
    return handed
