"""The agent's beginning and end.

``start`` only starts a thread. Everything that an injected agent brought into the process goes again with it:
hooks, thread, sockets, the registry, its modules and their importer, its page. What stays is one list and one
function of a few hundred bytes, made once a process: Python cannot forget an ``os.register_at_fork``.
"""

from __future__ import annotations

import _thread
import importlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import rendezvous
from .clients import Client, ClientGone
from .serve import HELLO_NS, Agent

RUNNING = "_sgtop_running"
"""Name in ``sys.modules`` of the registry of the agent that runs in this process."""
THREAD_NAME = "sgtop-agent"
FORK_HOLDER = "_sgtop_at_fork"

mono = time.monotonic_ns


class Registry:
    """Stands in ``sys.modules``. Versions of the agent meet here, so it says no more than this:

    ``hash``: which sources run. ``join(opts)``: take one more client in; False when the agent is ending.
    """

    def __init__(self, source_hash: str, agent: Agent) -> None:
        self.hash = source_hash
        self._agent = agent

    def join(self, opts: Mapping[str, Any]) -> bool:
        """Meet a further client as ``opts`` says. Blocks the calling thread (the injection's own) until then."""
        return _meet(self._agent, opts, own_thread=False)


def start(opts: Mapping[str, Any]) -> None:
    """Start (or join) the agent on a thread of its own; returns at once, never raises.

    ``opts``: way, token, rendezvous (pair | listen), nonce, dir, deadline_ns, page ([address, length] | None),
    nvtx, hash.
    """
    try:
        _thread.start_new_thread(_main, (dict(opts),))
    except Exception:
        _clean(opts)


def _main(opts: dict[str, Any]) -> None:
    try:
        _run(opts)
    except BaseException:  # nobody is left to tell, and nothing may reach the server
        pass
    finally:
        _clean(opts)


def _run(opts: dict[str, Any]) -> None:
    for _ in range(20):
        if mono() > _deadline(opts):
            return
        running: Any = sys.modules.get(RUNNING)
        if running is None:
            agent = Agent(str(opts.get("way", "pending-call")), stay=False, nvtx=bool(opts.get("nvtx")))
            registry = Registry(str(opts.get("hash", "")), agent)
            if sys.modules.setdefault(RUNNING, registry) is not registry:  # type: ignore[arg-type, comparison-overlap]
                agent.close()
                continue
            _serve(agent, registry, opts)
            return
        if getattr(running, "hash", None) != opts.get("hash", ""):
            theirs = getattr(running, "hash", "unknown")
            _refuse(opts, f"another version of sgtop's agent runs in this server (sources {theirs}); detach it first")
            return
        if running.join(opts):
            return
        time.sleep(0.02)


def _deadline(opts: Mapping[str, Any]) -> int:
    value = opts.get("deadline_ns")
    return int(value) if value else mono() + HELLO_NS


def _serve(agent: Agent, registry: Registry, opts: Mapping[str, Any]) -> None:
    try:
        off_in_children(agent)
        load_extensions(agent)
        if _meet(agent, opts, own_thread=True):
            agent.run()
    finally:
        agent.close()
        on_end(agent)
        if sys.modules.get(RUNNING) is registry:  # type: ignore[comparison-overlap]
            sys.modules.pop(RUNNING, None)


def load_extensions(agent: Agent) -> None:
    """Parts that a build may lack: kernel tracing, switches."""
    for name in (".kernels.extension", ".switches.extension"):
        try:
            extension = importlib.import_module(name, __package__)
        except ImportError:
            continue
        agent.extend(extension.setup)


# --- meeting a client ----------------------------------------------------------------------------------


def _meet(agent: Agent, opts: Mapping[str, Any], own_thread: bool) -> bool:
    """Hand ``agent`` a client, or a listening socket, as ``opts`` says.

    ``own_thread``: this is the agent's thread, which waits by serving. Else it waits here, under the name by which
    sgtop finds the pair.
    """
    token = str(opts.get("token", ""))
    if not token:
        return False
    if opts.get("rendezvous") == "listen":
        return _meet_listening(agent, opts, token, own_thread)
    deadline = _deadline(opts)
    client, theirs = rendezvous.pair(mono, deadline, "pair")
    met = [False]

    def greeted() -> None:
        met[0] = True
        theirs.close()
        if own_thread:
            rendezvous.name_thread(THREAD_NAME)

    def take() -> None:
        agent.tokens.add(token)
        agent.on_hello[id(client)] = greeted
        agent.add(client)

    if own_thread:
        take()
        agent.at_close.append(theirs.close)
        rendezvous.name_thread(rendezvous.pair_name(theirs, str(opts.get("nonce", ""))))
        return True
    try:
        if not agent.post(take):
            client.close()
            return False
        rendezvous.name_thread(rendezvous.pair_name(theirs, str(opts.get("nonce", ""))))
        while not met[0] and not client.closed and mono() < deadline:
            time.sleep(0.005)
        return True
    finally:
        theirs.close()


def _meet_listening(agent: Agent, opts: Mapping[str, Any], token: str, own_thread: bool) -> bool:
    folder = str(opts.get("dir") or rendezvous.default_folder())
    listener = rendezvous.Listener(folder, os.getpid(), token)

    def take() -> None:
        agent.tokens.add(token)
        # Nobody may come: the agent waits as long as for a hello, then ends.
        agent.listen(listener.sock, admit)
        agent.hold_until(_deadline(opts))
        agent.at_close.append(listener.close)

    if own_thread:
        take()
        rendezvous.name_thread(THREAD_NAME)
        return True
    if agent.post(take):
        return True
    listener.close()
    return False


def admit(peer: Any) -> Client | None:
    """A connection to a listening socket becomes a client, when its uid may."""
    if rendezvous.allowed(peer):
        return Client(peer, mono, "socket", mono() + HELLO_NS)
    peer.close()
    return None


def _refuse(opts: Mapping[str, Any], why: str) -> None:
    """Meet the client only to say why there will be no agent."""
    deadline = _deadline(opts)
    if opts.get("rendezvous") == "listen":
        return
    client, theirs = rendezvous.pair(mono, deadline, "refused")
    rendezvous.name_thread(rendezvous.pair_name(theirs, str(opts.get("nonce", ""))))
    try:
        while mono() < deadline:
            if any(frame["k"] == "hello" for frame in client.read()):
                client.send({"k": "bye", "why": why})
                client.flush()
                break
            time.sleep(0.005)
    except ClientGone:
        pass
    finally:
        theirs.close()
        client.close()


# --- forks and the end ---------------------------------------------------------------------------------


def off_in_children(agent: Agent) -> None:
    """In a forked child the agent's thread does not exist: undo the hooks there and close the agent's fds.

    The function that Python keeps for ever is made from nothing but a list, so that it keeps nothing else alive.
    """
    holder = getattr(threading, FORK_HOLDER, None)
    if holder is None:
        holder = []
        setattr(threading, FORK_HOLDER, holder)
        scope: dict[str, Any] = {"holder": holder}
        exec("def after_fork():\n for off in holder[:]:\n  off()\n", scope)
        os.register_at_fork(after_in_child=scope["after_fork"])
    holder.append(agent.off_in_child)


def on_end(agent: Agent) -> None:
    """The agent is gone: a child need not be told."""
    holder = getattr(threading, FORK_HOLDER, [])
    if agent.off_in_child in holder:
        holder.remove(agent.off_in_child)


def _clean(opts: Mapping[str, Any]) -> None:
    """Take out of the process what this start brought in. A running agent that it only joined has its own modules."""
    try:
        _unmap(opts.get("page"))
        threads = threading._active  # type: ignore[attr-defined]
        mine = threads.get(threading.get_ident())
        if type(mine).__name__ == "_DummyThread":
            del threads[threading.get_ident()]
        dissolve(_forget_modules())  # last: nothing of this package can be called after it
    except Exception:  # nobody is left to tell, and nothing may reach the server
        pass


def _forget_modules() -> list[Any]:
    """Remove the alias package and its importer; what was removed. A package that was installed stays."""
    package = sys.modules.get(__package__ or "")
    loader: Any = getattr(getattr(package, "__spec__", None), "loader", None)
    return list(loader.remove()) if hasattr(loader, "sgtop_alias") else []


def dissolve(modules: list[Any], patience_s: float = 0.4) -> None:
    """Take apart the cycles of modules that are gone, so that their memory does not wait for a full collection.

    A server that froze its heap runs one so seldom that attaching would seem to leak. Only once no thread is inside
    of this package: the main thread may still sleep below a hook that is off already. Then it is left to the
    collector.
    """
    scopes = {id(vars(m)) for m in modules}
    own = threading.get_ident()
    sleep, end = time.sleep, time.monotonic() + patience_s
    while modules:
        sleep(0.02)
        inside = False
        for ident, top in sys._current_frames().items():
            frame: Any = None if ident == own else top
            while frame is not None and not inside:
                inside = id(frame.f_globals) in scopes
                frame = frame.f_back
        if not inside:
            break
        if time.monotonic() > end:
            return
    classes = {v for m in modules for v in vars(m).values() if isinstance(v, type) and v.__module__ == m.__name__}
    for cls in classes:
        for name in [n for n, v in vars(cls).items() if callable(v) or isinstance(v, (property, staticmethod))]:
            try:
                delattr(cls, name)
            except (AttributeError, TypeError):
                continue
    for module in modules:
        vars(module).clear()


def _unmap(page: Any) -> None:
    if not page:
        return
    import ctypes

    munmap = ctypes.CDLL(None).munmap
    munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    munmap(int(page[0]), int(page[1]))
