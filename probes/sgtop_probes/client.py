"""A connection to one rank's agent: wire frames over a unix socket, non-blocking, with heartbeat.

The heartbeat goes out from ``receive`` and ``send``, not from a thread of its own: an sgtop that no longer reads must
look dead to the agent, which then undoes its hooks.
"""

from __future__ import annotations

import array
import hmac
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sgtop_agent import wire

from . import codec
from .errors import AttachError

HELLO_TIMEOUT_S = 3.0
_RECEIVE = 256 * 1024
_MAX_FDS = 16


class ConnectionLost(Exception):
    """The agent has gone, or sent what is not a frame; the text says which. The connection is closed."""


class Connection:
    """A greeted connection. ``hello``: the agent's; ``way``: how it came about (header of the screen).

    ``clock`` gives CLOCK_MONOTONIC seconds.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        hello: wire.Frame,
        way: str,
        reader: wire.FrameReader | None = None,
        early: list[wire.Frame] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader = reader or codec.reader()
        self._early = early or []
        self._out = bytearray()
        self._rights: deque[tuple[int, tuple[int, ...]]] = deque()
        """(position in ``_out``, descriptors that travel with the byte there): duplicates of ours"""
        self._clock = clock
        self._next_ping = clock() + wire.HEARTBEAT_S
        self._closed = False
        self._why: str | None = None
        self._bye: str | None = None
        self.hello, self.way = hello, way
        self.fds: deque[int] = deque()
        """Descriptors that came with frames, in order; whoever takes one closes it."""
        self.unknown = 0
        """Frames of a kind that this version does not know; they are dropped."""

    def fileno(self) -> int:
        """The socket, for select or epoll; -1 when closed."""
        return self._sock.fileno()

    def receive(self) -> list[wire.Frame]:
        """Frames that have arrived; never waits. Sends the heartbeat when it is due: call it every second at least.

        Raises:
            ConnectionLost: after all frames that came before it were handed out.
        """
        frames, self._early = self._early, []
        if self._why is None:
            try:
                self._take(frames)
                self._beat()
            except ConnectionLost as e:
                self._why = str(e)
        if self._why is not None and not frames:
            self.close()
            raise ConnectionLost(self._why)
        return frames

    def _take(self, frames: list[wire.Frame]) -> None:
        for _ in range(64):  # bounded: an agent that writes faster than we read must not hold us here
            try:
                data = receive_bytes(self._sock, self.fds)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as e:
                raise ConnectionLost(f"the connection broke: {e.strerror}") from None
            if not data:
                if self._bye is not None:
                    raise ConnectionLost(f"the agent left: {self._bye}")
                half = f", in the middle of a frame ({self._reader.pending} bytes)" if self._reader.pending else ""
                raise ConnectionLost(f"the agent closed the connection{half}")
            try:
                for frame in self._reader.feed(data):
                    if frame["k"] == "bye":
                        self._bye = str(frame.get("why", "it gave no reason"))
                    if frame["k"] in wire.KINDS:
                        frames.append(frame)
                    else:
                        self.unknown += 1
            except wire.WireError as e:
                raise ConnectionLost(f"the agent sent garbage: {e}") from None

    def _beat(self) -> None:
        now = self._clock()
        if now >= self._next_ping:
            self._next_ping = now + wire.HEARTBEAT_S
            if not self._out:
                self._out += wire.pack({"k": "ping"})
        self._flush()

    def send(self, frame: wire.Frame, fds: Sequence[int] = ()) -> None:
        """Queue a frame and give the socket what it takes; never waits. ``fds`` are duplicated and stay the caller's.

        Raises:
            ConnectionLost: closed, or the agent takes nothing any more. WireError: see ``wire.pack``.
        """
        if self._closed or self._why is not None:
            raise ConnectionLost(self._why or "the connection is closed")
        data = wire.pack(frame)
        if fds:
            self._rights.append((len(self._out), tuple(os.dup(fd) for fd in fds)))
        self._out += data
        if len(self._out) > wire.MAX_FRAME:
            raise ConnectionLost("the agent takes no frames")
        self._flush()

    def _flush(self) -> None:
        while self._out:
            try:
                n = self._send_some()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as e:
                raise ConnectionLost(f"the connection broke: {e.strerror}") from None
            del self._out[:n]
            self._rights = deque((at - n, fds) for at, fds in self._rights)

    def _send_some(self) -> int:
        """Send up to the next byte that has descriptors with it, or that byte with them and what follows."""
        if not self._rights:
            return self._sock.send(self._out, socket.MSG_NOSIGNAL)
        at, fds = self._rights[0]
        if at > 0:
            return self._sock.send(self._out[:at], socket.MSG_NOSIGNAL)
        end = self._rights[1][0] if len(self._rights) > 1 else len(self._out)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        n = self._sock.sendmsg([self._out[:end]], rights, socket.MSG_NOSIGNAL)
        self._rights.popleft()
        for fd in fds:
            os.close(fd)
        return n

    def close(self) -> None:
        """Close; the agent undoes its hooks. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._sock.close()
        while self.fds:
            os.close(self.fds.popleft())
        while self._rights:
            for fd in self._rights.popleft()[1]:
                os.close(fd)


def receive_bytes(sock: socket.socket, fds: deque[int]) -> bytes:
    """One ``recvmsg``: the bytes, and descriptors appended to ``fds``.

    Raises:
        OSError: see recvmsg(2); BlockingIOError when nothing has come.
    """
    data, ancillary, _flags, _address = sock.recvmsg(
        _RECEIVE, socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(raw[: len(raw) - len(raw) % received.itemsize])
            fds.extend(received)
    return data


def greet(
    sock: socket.socket,
    *,
    token: str,
    way: str | None = None,
    extra: dict[str, Any] | None = None,
    timeout: float = HELLO_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Exchange hellos on a connected socket; ``way`` overrides what the agent calls its way in.

    Raises:
        AttachError: no hello in time, garbage, a wrong token, an agent of another protocol; or the agent said ``bye``
            (kind ``foreign`` for another version, ``starting`` when it saw no event loop). The socket is closed then.
    """
    try:
        return _greet(sock, token, way, extra or {}, timeout, clock)
    except BaseException:
        sock.close()
        raise


def _greet(
    sock: socket.socket,
    token: str,
    way: str | None,
    extra: dict[str, Any],
    timeout: float,
    clock: Callable[[], float],
) -> Connection:
    reader, fds, frames = codec.reader(), deque[int](), list[wire.Frame]()
    hello = {"k": "hello", "proto": wire.PROTOCOL, "token": token, "pid": os.getpid(), **extra}
    sock.setblocking(True)
    sock.settimeout(timeout)
    end = clock() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        try:
            sock.sendall(wire.pack(hello))
            while not frames:
                left = end - clock()
                if left <= 0 or not selector.select(left):
                    raise AttachError("the agent does not answer", f"no hello within {timeout:g} s")
                data = receive_bytes(sock, fds)
                if not data:
                    raise AttachError("the agent closed the connection instead of answering", kind="failed")
                frames += reader.feed(data)
        except wire.WireError as e:
            raise AttachError("what answers there is not an sgtop agent", f"it sent garbage: {e}") from None
        except OSError as e:
            raise AttachError("the agent went away while saying hello", e.strerror or "") from None
    first = frames.pop(0)
    if first["k"] == "bye":
        why = str(first.get("why", "it gave no reason"))
        raise AttachError("the agent refused", why, kind=_bye_kind(why))
    if first["k"] != "hello":
        raise AttachError("what answers there is not an sgtop agent", f"its first frame is {first['k']!r}")
    if first.get("proto") != wire.PROTOCOL:
        raise AttachError(
            f"the agent speaks protocol {first.get('proto')}, this sgtop {wire.PROTOCOL}",
            f"agent version {first.get('agent', 'unknown')}",
            "install the same version of sgtop-agent and sgtop-profiler",
            kind="foreign",
        )
    if not hmac.compare_digest(str(first.get("token")).encode(), token.encode()):
        raise AttachError("the agent's token is wrong", "another process answers in the agent's place", kind="failed")
    connection = Connection(
        sock, hello=first, way=way or str(first.get("way", "?")), reader=reader, early=frames, clock=clock
    )
    connection.fds.extend(fds)
    return connection


def _bye_kind(why: str) -> str:
    """The agent says in words why it refuses; an older or newer one may say it differently, so this looks at little."""
    text = why.lower()
    if "version" in text or "protocol" in text:
        return "foreign"
    return "starting" if text.startswith("starting") else "failed"
