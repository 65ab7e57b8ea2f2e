"""An agent from the start (plugin, ``sgtop run``): it opens a socket in a scheduler and sleeps.

No hook is set and nothing is looked at before a client connects. Whatever goes wrong is one line in the server's
log, and SGLang goes on.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

from . import boot, rendezvous
from .serve import Agent, start_thread

logger = logging.getLogger("sgtop")

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def source_hash(package: Path | None = None) -> str:
    """Which version of the agent this is: the hash that an injection of the same sources carries."""
    package = package if package is not None else Path(__file__).parent
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".so") and "__pycache__" not in path.parts:
            data = path.read_bytes()
            sha.update(f"{path.relative_to(package).as_posix()}:{len(data)}\n".encode())
            sha.update(data)
    return sha.hexdigest()[:16]


def arm(way: str) -> None:
    """Start the sleeping agent of this scheduler process, once; returns at once, never raises."""
    try:
        start_thread(lambda: _run(way))
    except Exception as error:
        logger.warning("sgtop: the agent did not start: %s", error)


def _run(way: str) -> None:
    try:
        agent = Agent(way, stay=True)
        registry: Any = boot.Registry(source_hash(), agent)
        if sys.modules.setdefault(boot.RUNNING, registry) is not registry:
            agent.close()  # the other way of starting (plugin and run together) was first
            return
        try:
            listener = rendezvous.Listener(rendezvous.default_folder(), os.getpid(), None)
        except OSError as error:
            sys.modules.pop(boot.RUNNING, None)
            agent.close()
            logger.warning("sgtop: no agent in this scheduler: %s", error)
            return
        atexit.register(listener.close)
        agent.tokens.add(listener.token)
        agent.listen(listener.sock, boot.admit)
        agent.at_close.append(listener.close)
        boot.off_in_children(agent)
        boot.load_extensions(agent)
        rendezvous.name_thread(boot.THREAD_NAME)
        try:
            agent.run()
        finally:
            boot.on_end(agent)
            sys.modules.pop(boot.RUNNING, None)
    except Exception as error:
        logger.warning("sgtop: the agent ended: %s: %s", type(error).__name__, error)


def allow_ptrace() -> None:
    """Under yama's default only ancestors may trace: let any process of this uid, so that sgtop can attach later."""
    try:
        with open(YAMA) as f:
            if f.read().strip() == "1":
                ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)
    except OSError:
        pass
