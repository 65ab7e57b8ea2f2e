"""One connected client: frames in, a bounded queue of bytes (and fds) out. Never waits for the peer."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from . import wire

MAX_QUEUED = 4 * 1024 * 1024
"""Bytes that may wait for a client; one more and it is dropped."""

MAX_FDS = 4
_FD_SPACE = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)


class ClientGone(Exception):
    """The client is to be dropped; the text says why."""


class Client:
    """A client on a non-blocking stream socket.

    ``clock`` gives CLOCK_MONOTONIC nanoseconds. ``greeted`` turns true with a valid hello. ``seen`` is when
    the client last said anything, ``moved`` when it last took bytes.
    """

    def __init__(self, sock: socket.socket, clock: Callable[[], int], label: str, deadline: int) -> None:
        sock.setblocking(False)
        self.sock, self.label, self.deadline = sock, label, deadline
        self.greeted = False
        self.closed = False
        self._clock = clock
        self.seen = self.moved = clock()
        self._reader = wire.FrameReader(max_frame=1 << 20)
        self._out: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.queued = 0
        self.fds: deque[int] = deque()
        """Descriptors that came with frames, in order; whoever takes one closes it."""

    def fileno(self) -> int:
        """The socket's fd."""
        return self.sock.fileno()

    def read(self) -> Iterator[wire.Frame]:
        """Frames that have arrived.

        Raises:
            ClientGone: the peer closed, or what it sent is garbage.
        """
        try:
            data, ancillary, _, _ = self.sock.recvmsg(65536, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ClientGone(f"read failed: {error}") from None
        if ancillary:
            self._take_fds(ancillary)
        if not data:
            raise ClientGone("closed by the client")
        self.seen = self._clock()
        try:
            yield from self._reader.feed(data)
        except wire.WireError as error:
            raise ClientGone(f"garbage: {error}") from None

    def _take_fds(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came = array.array("i")
                came.frombytes(raw[: len(raw) - len(raw) % came.itemsize])
                self.fds.extend(came)
        if len(self.fds) > MAX_FDS:
            raise ClientGone("hands over descriptors that nobody asked for")

    def send(self, frame: wire.Frame, fds: Sequence[int] = ()) -> None:
        """Queue a frame; ``fds`` are duplicated for the peer when it is sent and stay open here."""
        self.send_bytes(wire.pack(frame), fds)

    def send_bytes(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Queue bytes that are whole frames already."""
        if self.closed:
            return
        if not self._out:
            self.moved = self._clock()
        self._out.append((memoryview(data), tuple(fds)))
        self.queued += len(data)

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait."""
        return bool(self._out)

    def flush(self) -> None:
        """Give the socket what it takes.

        Raises:
            ClientGone: the peer is gone, or too much waits for it.
        """
        while self._out:
            data, fds = self._out[0]
            try:
                if fds:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                    n = self.sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
                else:
                    n = self.sock.send(data, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise ClientGone(f"write failed: {error}") from None
            self.moved = self._clock()
            self.queued -= n
            if n == len(data):
                self._out.popleft()
            else:
                self._out[0] = (data[n:], ())
        if self.queued > MAX_QUEUED:
            raise ClientGone(f"does not read: {self.queued} bytes wait")

    def check(self, now: int) -> None:
        """Raise ClientGone when the client is late with its hello, silent, or stuck."""
        limit = int(wire.CLIENT_TIMEOUT_S * 1e9)
        if not self.greeted:
            if now > self.deadline:
                raise ClientGone("no hello in time")
        elif now - self.seen > limit:
            raise ClientGone(f"silent for {wire.CLIENT_TIMEOUT_S:g} s")
        elif self._out and now - self.moved > limit:
            raise ClientGone(f"takes no bytes for {wire.CLIENT_TIMEOUT_S:g} s")

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self.closed = True
        self._out.clear()
        self.queued = 0
        while self.fds:
            os.close(self.fds.popleft())
        try:
            self.sock.close()
        except OSError:
            pass
