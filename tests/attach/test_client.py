"""Frames on the wire and on a live connection: whatever comes, there is a frame or one clear reason, never a crash."""

from __future__ import annotations

import array
import itertools
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_agent import wire
from sgtop_agent.clients import Client, ClientGone
from sgtop_probes import codec
from sgtop_probes.client import Connection, ConnectionLost, greet
from sgtop_probes.errors import AttachError

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
)
values = st.recursive(
    scalars | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
frames = st.builds(
    lambda kind, rest: {**rest, "k": kind},
    st.sampled_from([*wire.KINDS, "of-tomorrow"]),
    st.dictionaries(st.text(max_size=8), values, max_size=5),
)
fuzz = settings(deadline=None, max_examples=60)  # a deadline would measure the machine
HELLO = {"k": "hello", "proto": wire.PROTOCOL, "token": "t", "way": "plugin"}


def plain(value: Any) -> Any:
    """Views into a body compared as bytes."""
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def connection() -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair()
    return Connection(ours, hello=HELLO, way="plugin"), theirs


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def _until_it_raises(call: Callable[[], object]) -> None:
    for _ in range(100):
        call()


# --- from the agent to sgtop ------------------------------------------------------------------------


@fuzz
@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 1 << 16), max_size=8))
def test_any_cut_of_the_stream_gives_the_same_frames(sent: list[wire.Frame], places: list[int]) -> None:
    got: list[wire.Frame] = []
    made, theirs = connection()
    with theirs:
        for piece in cut(b"".join(wire.pack(f) for f in sent), places):
            theirs.sendall(piece)
            got += made.receive()
    known = [f for f in sent if f["k"] in wire.KINDS]
    assert plain(got) == known
    assert made.unknown == len(sent) - len(known)
    made.close()


@fuzz
@given(st.binary(max_size=300))
def test_garbage_ends_in_one_reason(data: bytes) -> None:
    made, theirs = connection()
    theirs.sendall(data)
    theirs.close()
    with pytest.raises(ConnectionLost, match=r"the agent (sent garbage|closed the connection)"):
        _until_it_raises(made.receive)
    assert made.fileno() == -1
    with pytest.raises(ConnectionLost):
        made.send({"k": "ping"})


@fuzz
@given(frames, st.data())
def test_truncated_frame_is_said_to_be_one(frame: wire.Frame, data: st.DataObject) -> None:
    whole = wire.pack(frame)
    n = data.draw(st.integers(1, len(whole) - 1))
    made, theirs = connection()
    theirs.sendall(whole[:n])
    theirs.close()
    with pytest.raises(ConnectionLost, match="in the middle of a frame"):
        made.receive()


@fuzz
@given(frames.filter(lambda f: f["k"] in wire.KINDS), st.binary(min_size=1, max_size=60))
def test_frames_before_the_garbage_are_handed_out_first(frame: wire.Frame, tail: bytes) -> None:
    made, theirs = connection()
    theirs.sendall(wire.pack(frame) + b"\xff\xff\xff\xff" + tail)
    assert plain(made.receive()) == [frame]
    with pytest.raises(ConnectionLost, match="garbage"):
        made.receive()
    theirs.close()
    made.close()


@fuzz
@given(st.binary(max_size=200))
def test_both_decoders_agree_on_garbage(body: bytes) -> None:
    """Msgpack's C code takes every frame that the agent's own decoder takes."""
    try:
        own = wire.unpack(body)
    except wire.WireError:
        return
    assert plain(codec.unpack(body)) == plain(own)


@fuzz
@given(st.binary(max_size=300))
def test_garbage_for_a_hello(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(data)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(AttachError):
        greet(ours, token="t", timeout=2)
    assert ours.fileno() == -1
    theirs.close()


# --- from sgtop to the agent ------------------------------------------------------------------------


def agent_side() -> tuple[Client, socket.socket]:
    ours, theirs = socket.socketpair()
    return Client(ours, lambda: 0, "test", 10**12), theirs


@fuzz
@given(st.binary(max_size=300))
def test_garbage_towards_the_agent(data: bytes) -> None:
    made, theirs = agent_side()
    theirs.sendall(data)
    theirs.close()
    with pytest.raises(ClientGone):
        _until_it_raises(lambda: list(made.read()))
    made.close()


@fuzz
@given(st.lists(frames, max_size=4), st.lists(st.integers(0, 1 << 16), max_size=6))
def test_any_cut_towards_the_agent(sent: list[wire.Frame], places: list[int]) -> None:
    made, theirs = agent_side()
    got: list[wire.Frame] = []
    with theirs:
        for piece in cut(b"".join(wire.pack(f) for f in sent), places):
            theirs.sendall(piece)
            got += made.read()
    assert plain(got) == sent
    made.close()


# --- one connection's life --------------------------------------------------------------------------


def test_heartbeat_goes_out_while_somebody_reads() -> None:
    now = [100.0]
    ours, theirs = socket.socketpair()
    made = Connection(ours, hello=HELLO, way="plugin", clock=lambda: now[0])
    reader = wire.FrameReader()
    theirs.setblocking(False)

    def pings() -> int:
        try:
            return sum(f["k"] == "ping" for f in reader.feed(theirs.recv(65536)))
        except BlockingIOError:
            return 0

    made.receive()
    assert pings() == 0
    now[0] += wire.HEARTBEAT_S
    made.receive()
    assert pings() == 1
    now[0] += wire.HEARTBEAT_S / 2
    made.receive()
    assert pings() == 0
    now[0] += 60  # nobody read for a minute: one heartbeat, not sixty
    made.receive()
    assert pings() == 1
    made.close()
    theirs.close()


def test_agent_that_takes_nothing_does_not_block_us() -> None:
    made, theirs = connection()
    large = {"k": "cmd", "id": 1, "op": "x", "args": {"b": bytes(1024 * 1024)}}
    with pytest.raises(ConnectionLost, match="takes no frames"):
        _until_it_raises(lambda: made.send(large))
    made.close()
    theirs.close()


def test_descriptors_that_come_with_a_frame() -> None:
    made, theirs = connection()
    fd = os.memfd_create("ring")
    os.write(fd, b"hello")
    rights = array.array("i", [fd])
    theirs.sendmsg([wire.pack({"k": "note", "text": "ring"})], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(fd)
    assert [f["k"] for f in made.receive()] == ["note"]
    got = made.fds.popleft()
    assert os.pread(got, 10, 0) == b"hello"
    assert not os.get_inheritable(got)
    os.close(got)
    made.close()
    theirs.close()


def test_descriptors_that_nobody_took_are_closed() -> None:
    made, theirs = connection()
    fd = os.memfd_create("ring")
    theirs.sendmsg([wire.pack({"k": "ping"})], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
    made.receive()
    held = made.fds[0]
    made.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)
    theirs.close()


def test_frames_behind_the_hello_are_not_lost() -> None:
    ours, theirs = socket.socketpair()

    def agent() -> None:
        theirs.recv(65536)
        theirs.sendall(wire.pack(HELLO) + wire.pack({"k": "note", "text": "one"}) + wire.pack({"k": "stat"})[:5])

    thread = threading.Thread(target=agent)
    thread.start()
    made = greet(ours, token="t")
    thread.join()
    assert [f["k"] for f in made.receive()] == ["note"]
    theirs.sendall(wire.pack({"k": "stat"})[5:])
    assert [f["k"] for f in made.receive()] == ["stat"]
    made.close()
    theirs.close()


def test_last_word_of_the_agent_is_the_reason() -> None:
    made, theirs = connection()
    theirs.sendall(wire.pack({"k": "bye", "why": "detached"}))
    theirs.close()
    assert [f["k"] for f in made.receive()] == ["bye"]
    with pytest.raises(ConnectionLost, match="the agent left: detached"):
        made.receive()


def test_silent_agent() -> None:
    ours, theirs = socket.socketpair()
    with pytest.raises(AttachError, match="does not answer"):
        greet(ours, token="t", timeout=0.1)
    theirs.close()


def test_descriptors_travel_with_their_frame_and_stay_the_callers() -> None:
    ours, theirs = connection()
    agent = Client(theirs, lambda: 0, "test", 0)
    before = len(os.listdir("/proc/self/fd"))
    pipes = [os.pipe() for _ in range(2)]
    ours.send({"k": "ping", "pad": "x" * 100_000})
    for i, (r, _) in enumerate(pipes):
        ours.send({"k": "cmd", "id": i, "op": "x", "args": {}}, (r,))
    got: list[wire.Frame] = []
    for _ in range(50):
        got += list(agent.read())
        ours.receive()
    assert [f["k"] for f in got] == ["ping", "cmd", "cmd"]
    assert [os.fstat(fd).st_ino for fd in agent.fds] == [os.fstat(r).st_ino for r, _ in pipes]
    ours.send({"k": "ping"}, (pipes[0][0],))  # never read
    agent.close()
    ours.close()
    for pair in pipes:
        for fd in pair:
            os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before - 2
