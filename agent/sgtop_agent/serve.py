"""The agent's thread: clients, heartbeats, flushing 5 times a second, and leaving without a trace.

The thread never waits for a client and never for the main thread. It works in slices and is seldom awake; ``flushes``
says why.
"""

from __future__ import annotations

import _thread
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from . import basic_ops, find, greeting, wire
from .clients import Client, ClientGone
from .flushes import SLICE_PAUSE_S, Flushes
from .hooks import Hooks
from .ops import Call, OpError, Ops

HELLO_NS = 2_000_000_000
"""A client that connects without a deadline of its own has this long for its hello."""

mono = time.monotonic_ns


class Agent:
    """Serves one scheduler.

    ``stay``: a plugin's agent, which sleeps when its last client has gone; an injected one ends.
    ``tokens``: what a client's hello may carry.
    """

    def __init__(self, way: str, stay: bool, nvtx: bool = False) -> None:
        self.way, self.stay, self.nvtx = way, stay, nvtx
        self.tokens: set[str] = set()
        self.ops = Ops()
        self.hooks: Hooks | None = None
        self.clients: list[Client] = []
        self.listeners: list[tuple[socket.socket, Callable[[socket.socket], Client | None]]] = []
        self.on_hello: dict[int, Callable[[], None]] = {}
        """id of a client → what to do when its hello has come"""
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._posted: deque[Callable[[], None]] = deque()
        self._ticks: list[list[Any]] = []
        self._undo: list[Callable[[], None]] = []
        self._gone: list[Callable[[Client], None]] = []
        self._busy: list[Callable[[], bool]] = []
        self._forked: list[Callable[[], None]] = []
        self._flushes = Flushes()
        self._setups: list[Callable[[Agent], None]] = []
        self.at_close: list[Callable[[], None]] = []
        self._hold = 0
        self.ended = False
        self.lock = _thread.allocate_lock()
        """Held to add a client from another thread, and to decide that there is none left to serve."""
        basic_ops.register(self)

    # --- for extensions (kernels, switches) ------------------------------------------------------

    @property
    def scheduler(self) -> Any:
        """The scheduler while hooks are on.

        Raises:
            OpError: no hooks are on.
        """
        if self.hooks is None:
            raise OpError("the agent has no scheduler yet")
        return self.hooks.scheduler

    def extend(self, setup: Callable[[Agent], None]) -> None:
        """Call ``setup(agent)`` each time the hooks go on; it registers operations, ticks and undoing."""
        self._setups.append(setup)

    def at_step(self, fn: Callable[[], None]) -> None:
        """Run ``fn`` once on the scheduler's main thread at its next step boundary. See ``boundary``."""
        if self.hooks is None or not self.hooks.boundary.at_step(fn):
            raise OpError("no step boundary: the queue is full or the hooks are off")

    def post(self, fn: Callable[[], None]) -> bool:
        """Run ``fn`` on the agent's thread soon; any thread. False: the agent ends, ``fn`` will not run."""
        with self.lock:
            if self.ended:
                return False
            self._posted.append(fn)
            self.wake()
            return True

    def every(self, period_ns: int, fn: Callable[[int], None], wanted: Callable[[], bool] = lambda: True) -> None:
        """Call ``fn(now)`` on the agent's thread about every ``period_ns`` while hooks are on.

        While ``wanted()`` is false no thread wakes up for it: it is called when the agent is awake anyway.
        """
        self._ticks.append([0, period_ns, fn, wanted])

    def on_undo(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` before the hooks are undone (once; register again at the next setup)."""
        self._undo.append(fn)

    def add_busy(self, fn: Callable[[], bool]) -> None:
        """While ``fn()`` is true the hooks stay on, clients or none; it must see to it that it becomes false."""
        self._busy.append(fn)

    def on_fork(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` in a forked child, where no thread of the agent's is."""
        self._forked.append(fn)

    def on_client_gone(self, fn: Callable[[Client], None]) -> None:
        """Call ``fn(client)`` when a greeted client has gone, before the hooks may be undone."""
        self._gone.append(fn)

    def emit(self, frame: Any, fds: Sequence[int] = ()) -> None:
        """Send a frame to every greeted client; agent's thread."""
        self._send(wire.pack(frame), fds)

    def _send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        for client in self.clients:
            if client.greeted:
                client.send_bytes(data, fds)

    def note(self, level: str, text: str) -> None:
        """A line for the clients' log. ``level``: info, warning, error."""
        self.emit({"k": "note", "t": mono(), "level": level, "text": text})

    def wake(self) -> None:
        """Make the thread look at its queues; any thread, never blocks."""
        try:
            os.write(self._wake_w, b"\0")
        except OSError:
            pass

    # --- clients ---------------------------------------------------------------------------------

    def add(self, client: Client) -> None:
        """Take a client in; it must say hello before its deadline. Agent's thread (or before it runs)."""
        self.clients.append(client)
        self._selector.register(client.sock, selectors.EVENT_READ, client)

    def hold_until(self, t: int) -> None:
        """Do not end for want of clients before ``t``."""
        self._hold = max(self._hold, t)

    def listen(self, sock: socket.socket, admit: Callable[[socket.socket], Client | None]) -> None:
        """Accept on ``sock``; ``admit`` turns a connection into a client or closes it and returns None."""
        sock.setblocking(False)
        self.listeners.append((sock, admit))
        self._selector.register(sock, selectors.EVENT_READ, (sock, admit))

    def _accept(self, listener: tuple[socket.socket, Callable[[socket.socket], Client | None]]) -> None:
        sock, admit = listener
        try:
            peer, _ = sock.accept()
        except OSError:
            return
        client = admit(peer)
        if client is not None:
            self.add(client)

    def _read(self, client: Client) -> None:
        for frame in client.read():
            if not client.greeted:
                self._greet(client, frame)
                if client.closed:
                    return
            elif frame["k"] == "cmd":
                args = frame.get("args")
                call = Call(client, frame.get("id"), str(frame.get("op")), args if isinstance(args, dict) else {})
                self.ops.run(call)

    def _greet(self, client: Client, frame: wire.Frame) -> None:
        if frame["k"] != "hello":
            raise ClientGone(f"said {frame['k']} before hello")
        refused = greeting.refusal(frame, self.tokens)
        if refused:
            self.dismiss(client, refused)
            return
        found = find.find()
        if found is None or not found.loop:
            self.dismiss(client, "starting: the scheduler's event loop does not run yet")
            return
        after = self.on_hello.pop(id(client), None)
        if after is not None:
            after()
        if self.hooks is None:
            self._hook(found)
        assert self.hooks is not None
        client.greeted = True
        client.send(greeting.hello(self.hooks, found, self.way, greeting.token_of(frame)))
        for text in greeting.warnings(self.hooks):
            client.send({"k": "note", "t": mono(), "level": "warning", "text": text})

    def dismiss(self, client: Client, why: str) -> None:
        """Say goodbye to a client and drop it; agent's thread."""
        client.send({"k": "bye", "why": why})
        try:
            client.flush()
        except ClientGone:
            pass
        self._drop(client)

    def _drop(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            self._selector.unregister(client.sock)
            self.on_hello.pop(id(client), None)
            client.close()
            if client.greeted:
                for fn in list(self._gone):
                    self._guard(lambda fn=fn: fn(client))  # type: ignore[misc]

    # --- hooks -----------------------------------------------------------------------------------

    def _hook(self, found: find.Found) -> None:
        self.hooks = Hooks(found, self.nvtx)
        time.sleep(SLICE_PAUSE_S)
        self.hooks.install()
        for setup in self._setups:
            time.sleep(SLICE_PAUSE_S)
            self._guard(lambda setup=setup: setup(self))  # type: ignore[misc]
        self._flushes.begin()
        self.hooks.calibrate()

    def _follow(self, loop: str) -> None:
        """The scheduler runs another event loop now (0.5.23 can switch roles): other methods are its stages."""
        found = find.find()
        if self.hooks is not None and found is not None and found.loop and not self._is_busy():
            self.hooks.undo()
            self.hooks = Hooks(found, self.nvtx)
            self.hooks.install()
            self.note("info", f"the scheduler runs {loop} now")
            self.hooks.calibrate()

    def _unhook(self) -> None:
        hooks, self.hooks = self.hooks, None
        if hooks is None:
            return
        for fn in self._undo:
            self._guard(fn)
        self._undo.clear()
        self._ticks.clear()
        self._gone.clear()
        self._busy.clear()
        self._forked.clear()
        hooks.undo()

    def _is_busy(self) -> bool:
        try:
            return any(fn() for fn in self._busy)
        except Exception:
            return False

    def _guard(self, fn: Callable[[], Any]) -> None:
        try:
            fn()
        except Exception as error:
            self.note("error", f"agent: {type(error).__name__}: {error}"[:300])

    def _flush(self, now: int) -> None:
        hooks = self.hooks
        assert hooks is not None
        self._flushes.flush(hooks, now, self._send)
        if self._flushes.time_to_refresh(now):
            loop = find.loop_name(hooks.found.ident)
            if loop and loop != hooks.found.loop:
                self._follow(loop)
            else:
                hooks.refresh()

    # --- the thread ------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until there is no client and nothing to stay for. Whatever happens, the hooks are undone."""
        try:
            while not self.ended:
                self._turn()
                if not self.clients and not self._posted and not self._is_busy():
                    self._unhook()
                    with self.lock:
                        if not self.stay and not self._posted and mono() >= self._hold:
                            self.ended = True
        finally:
            self.close()

    def _timeout(self) -> float | None:
        """Seconds until something is due; None: only an event can wake a sleeping agent."""
        if self._posted:
            return 0.0
        now = mono()
        due: list[int] = [t[0] for t in self._ticks if t[3]()]
        if self.hooks is not None:
            due.append(self._flushes.due)
        due += [c.deadline for c in self.clients if not c.greeted]
        if not self.stay and not self.clients and self.hooks is None:
            due.append(self._hold)
        if not due:
            return None if not self.clients else 0.5
        return max(0.0, (min(due) - now) / 1e9)

    def _turn(self) -> None:
        for key, events in self._selector.select(self._timeout()):
            what = key.data
            if what is None:
                try:
                    os.read(self._wake_r, 4096)
                except OSError:
                    pass
            elif isinstance(what, Client):
                self._attend(what, events)
            else:
                self._accept(what)
        while self._posted:
            self._guard(self._posted.popleft())
        now = mono()
        if self.hooks is not None:
            flush = now >= self._flushes.due
            for tick in list(self._ticks):
                # Before a flush all of them, so that what they say comes before the rows of what ran since then: sgtop
                # must know that kernel tracing was off before it learns of a forward that was cut by that.
                if flush or now >= tick[0]:
                    tick[0] = now + tick[1]
                    self._guard(lambda tick=tick: tick[2](now))  # type: ignore[misc]
            if flush:
                self._flush(now)
        for client in list(self.clients):
            self._attend(client, 0)

    def _attend(self, client: Client, events: int) -> None:
        """Read, write and check one client; drop it when it is gone, late or stuck."""
        try:
            if events & selectors.EVENT_READ:
                self._read(client)
            if client.closed:
                return
            client.flush()
            client.check(mono())
            want = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.wants_write else 0)
            if self._selector.get_key(client.sock).events != want:
                self._selector.modify(client.sock, want, client)
        except ClientGone:
            self._drop(client)
        except Exception as error:
            self.dismiss(client, f"agent: {type(error).__name__}: {error}"[:300])

    def close(self) -> None:
        """Undo hooks, close every fd. Idempotent."""
        with self.lock:
            self.ended = True
        for client in list(self.clients):
            self.dismiss(client, "the agent ends")
        self._unhook()
        for sock, _ in self.listeners:
            sock.close()
        self.listeners.clear()
        for fn in self.at_close:
            self._guard(fn)
        self.at_close.clear()
        self._selector.close()
        with self.lock:
            for fd in (self._wake_r, self._wake_w):
                if fd >= 0:
                    os.close(fd)
            self._wake_r = self._wake_w = -1
        self.ops = Ops()  # its handlers refer to this agent: no cycle may wait for a collection
        self._setups.clear()
        self.on_hello.clear()

    def off_in_child(self) -> None:
        """In a forked child, where this thread does not exist: no hooks, no fds. Never raises."""
        try:
            for fn in self._forked:
                fn()
            if self.hooks is not None:
                self.hooks.patches.undo()
                self.hooks.gc_off()
            for fd in self._fds():
                os.close(fd)
        except Exception:  # nobody is left to tell, and nothing may reach the server
            pass

    def _fds(self) -> list[int]:
        fds = [self._wake_r, self._wake_w]
        epoll = getattr(self._selector, "fileno", None)  # not on a SelectSelector
        if epoll is not None:
            fds.append(epoll())
        fds += [c.fileno() for c in self.clients] + [s.fileno() for s, _ in self.listeners]
        return [fd for fd in fds if fd >= 0]


def start_thread(fn: Callable[[], None]) -> None:
    """Start a thread that ``threading`` does not know of: nothing waits for it at the interpreter's end."""
    _thread.start_new_thread(fn, ())
