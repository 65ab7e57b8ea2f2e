"""The native helper by itself: what it lends, publishes, overwrites and counts, and what readers may do."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sgtop_agent.kernels import helper as agent_helper
from sgtop_core.kernels.ring import COUNTERS, RingError, RingReader

from .records import Rec, pack, strides

SLOT = 8192
FLUSH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint32)
CLOCK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))


class Ring:
    """A helper of its own (a copy of the library has its own state) with a small ring."""

    def __init__(self, library: Path, slots: int) -> None:
        self.lib = ctypes.CDLL(str(library))
        agent_helper._declare(self.lib)
        self.fd = agent_helper._make_ring(self.lib, 130001, strides("13.0"), slots, SLOT)
        self.flushes: list[int] = []
        self._flush = FLUSH(self._on_flush)
        self._clock = CLOCK(self._on_clock)
        self.lib.sg_functions(
            ctypes.cast(self._flush, ctypes.c_void_p), ctypes.cast(self._clock, ctypes.c_void_p), None
        )

    def _on_flush(self, flag: int) -> int:
        self.flushes.append(flag)
        return 0

    def _on_clock(self, out: ctypes.Array[ctypes.c_uint64]) -> int:
        out[0] = time.time_ns()
        return 0

    def request(self) -> int | None:
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(99)
        self.lib.sg_request(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
        assert most.value == 0
        assert size.value == (SLOT if buffer.value else 0)
        return buffer.value

    def complete(self, address: int | None, data: bytes = b"") -> None:
        if address is not None and data:
            ctypes.memmove(address, data, len(data))
        self.lib.sg_complete(None, ctypes.c_uint32(0), ctypes.c_void_p(address), ctypes.c_size_t(SLOT),
                             ctypes.c_size_t(len(data)))  # fmt: skip

    def publish(self, mark: int) -> None:
        self.complete(self.request(), pack([Rec(10, mark, mark + 1)]))

    def counter(self, name: str) -> int:
        return int(RingReader(self.fd).counters()[name])


@pytest.fixture
def ring(helper: Path, tmp_path: Path) -> Iterator[Callable[[int], Ring]]:
    made: list[Ring] = []

    def make(slots: int = 8) -> Ring:
        copy = tmp_path / f"sgring{len(made)}.so"
        shutil.copy(helper, copy)
        made.append(Ring(copy, slots))
        return made[-1]

    yield make
    for r in made:
        assert r.lib.sg_stop(5000) == 0


def mark(buffer: bytes) -> int:
    return int(struct.unpack_from("<Q", buffer, 16)[0])


def marks(reader: RingReader, **more: object) -> list[int]:
    return [mark(b.data.tobytes()) for b in reader.poll(**more)]  # type: ignore[arg-type]


def test_buffers_arrive_in_order_for_every_reader(ring: Callable[[int], Ring]) -> None:
    r = ring(8)
    first, second = RingReader(r.fd), RingReader(r.fd)
    for k in range(1, 4):
        r.publish(k)
    assert marks(first) == [1, 2, 3]
    r.publish(4)
    assert marks(first) == [4]
    assert marks(second) == [1, 2, 3, 4]
    assert marks(second) == []
    assert (first.lost, second.lost) == (0, 0)


def test_the_oldest_buffer_is_overwritten_and_readers_count_it(ring: Callable[[int], Ring]) -> None:
    r = ring(8)
    reader = RingReader(r.fd)
    for k in range(1, 21):
        r.publish(k)
    assert marks(reader) == list(range(13, 21))
    assert reader.lost == 12
    c = reader.counters()
    assert (c["head"], c["recycled"], c["late"], c["starved"], c["spilled"]) == (20, 12, 12, 0, 0)


def test_a_buffer_overwritten_while_it_is_copied_is_lost_not_wrong(ring: Callable[[int], Ring]) -> None:
    r = ring(4)
    reader = RingReader(r.fd)
    for k in range(1, 5):
        r.publish(k)
    todo = [100, 101]

    def meanwhile() -> None:
        if todo:
            r.publish(todo.pop(0))

    got = [mark(b.data.tobytes()) for b in reader.poll(between=meanwhile)]
    assert got == [3, 4]
    assert reader.lost == 2
    assert marks(reader) == [100, 101]


def test_lent_buffers_are_invisible(ring: Callable[[int], Ring]) -> None:
    r = ring(4)
    reader = RingReader(r.fd)
    r.publish(1)
    lent = [r.request() for _ in range(3)]
    assert marks(reader) == [1]
    taken = r.request()  # the only published one
    assert r.counter("lent") == 4
    assert marks(reader) == []
    r.complete(lent[1], pack([Rec(10, 7, 8)]))
    assert marks(reader) == [7]
    r.complete(taken, pack([Rec(10, 9, 9)]))
    assert marks(reader) == [9]
    assert r.counter("lent") == 2


def test_every_slot_lent_spills_then_starves(ring: Callable[[int], Ring]) -> None:
    r = ring(4)
    inside = [r.request() for _ in range(4)]
    outside = [r.request() for _ in range(8)]
    assert None not in inside + outside
    assert len({*inside, *outside}) == 12
    assert r.request() is None
    assert (r.counter("spilled"), r.counter("starved")) == (8, 1)
    r.complete(outside[0], pack([Rec(10, 5, 6)] * 2))
    assert r.counter("spilled_bytes") == 432
    assert r.counter("head") == 0
    again = r.request()
    assert again == outside[0]
    assert again is not None
    assert ctypes.string_at(again, SLOT) == bytes(SLOT)


def test_what_is_lent_is_zero(ring: Callable[[int], Ring]) -> None:
    r = ring(4)
    for _ in range(10):
        address = r.request()
        assert address is not None
        assert ctypes.string_at(address, SLOT) == bytes(SLOT)
        r.complete(address, b"\xff" * SLOT)


def test_foreign_empty_and_double_completions(ring: Callable[[int], Ring]) -> None:
    r = ring(4)
    stranger = ctypes.create_string_buffer(SLOT)
    address = r.request()
    r.complete(ctypes.addressof(stranger), b"x" * 8)
    r.complete(None)
    assert address is not None
    r.complete(address + 8, b"y" * 8)
    assert (r.counter("foreign"), r.counter("lent")) == (2, 1)
    r.complete(address)
    assert (r.counter("empty"), r.counter("lent"), r.counter("head")) == (1, 0, 0)
    r.complete(address, pack([Rec(10, 1, 2)]))  # not lent any more
    assert (r.counter("foreign"), r.counter("head")) == (3, 0)


def test_readers_cannot_write(ring: Callable[[int], Ring]) -> None:
    r = ring(4)
    size = os.fstat(r.fd).st_size
    with pytest.raises(PermissionError):
        mmap.mmap(r.fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match=r"."):
        os.write(r.fd, b"x")
    # Nor through /proc, where the same user may open it anew for writing: the memfd is sealed.
    again = os.open(f"/proc/self/fd/{r.fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(again, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.write(again, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(again, 0)
    finally:
        os.close(again)


def test_flush_thread_flushes_samples_clocks_walks_and_washes(ring: Callable[[int], Ring]) -> None:
    r = ring(16)
    reader = RingReader(r.fd)
    assert r.lib.sg_start(5) == 0
    assert r.lib.sg_begin() == 1
    bad = pack([Rec(10, 0, 0), Rec(10, 5, 9), Rec(1, 5, 9), Rec(10, 9, 5)])
    for k in range(1, 17):
        r.publish(k)
    r.complete(r.request(), bad)
    r.complete(r.request(), pack([Rec(2, 5, 9)]) + b"\x33" * 64)
    end = time.monotonic() + 20
    while (c := reader.counters())["clock_head"] < 10 or c["records"] + c["unwalked"] < 21:
        assert time.monotonic() < end, c
        time.sleep(0.01)
    assert r.lib.sg_hold(1000) == 0
    assert c["epoch"] == 1
    assert c["malformed"] == 1
    assert c["untimed"] == 2
    assert set(r.flushes) == {0}, "the thread never forces"
    samples = reader.clock_samples()
    assert len(samples) >= 10
    assert all(s.mono0 <= s.mono1 and s.epoch == 1 for s in samples)
    offsets = [s.cupti - (s.mono0 + s.mono1) // 2 for s in samples]
    assert max(offsets) - min(offsets) < 50_000_000
    flushed = len(r.flushes)
    time.sleep(0.05)
    assert len(r.flushes) == flushed, "no flush after hold"
    # Washed ahead: the next requests take no time of the launching thread.
    late = r.counter("late")
    for _ in range(4):
        assert r.request() is not None
    assert r.counter("late") == late
    assert r.lib.sg_stop(5000) == 0
    assert r.lib.sg_start(5) == 0, "and it can run again"


def test_many_threads_ask_and_complete(ring: Callable[[int], Ring]) -> None:
    """No buffer is lent twice, none is lost or seen half-written, and the orders have no hole."""
    r = ring(32)
    assert r.lib.sg_start(1) == 0
    r.lib.sg_begin()
    reader = RingReader(r.fd)
    out: set[int] = set()
    lock = threading.Lock()
    errors: list[str] = []
    per_thread = 400

    def work(n: int) -> None:
        for k in range(per_thread):
            address = r.request()
            if address is None:
                errors.append("starved")
                return
            with lock:
                if address in out:
                    errors.append("lent twice")
                out.add(address)
            data = pack([Rec(10, 1 + n * per_thread + k, 1 << 40, name=1 + n * per_thread + k)] * 20)
            ctypes.memmove(address, data, len(data))
            with lock:
                out.discard(address)
            r.complete(address, data)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    seen: list[int] = []
    orders: list[int] = []

    def drain() -> None:
        for b in reader.poll():
            starts = {struct.unpack_from("<Q", b.data, 216 * i + 16)[0] for i in range(20)}
            names = {struct.unpack_from("<Q", b.data, 216 * i + 104)[0] for i in range(20)}
            assert len(starts) == 1
            assert starts == names
            seen.append(starts.pop())
            orders.append(b.order)

    while any(t.is_alive() for t in threads):
        drain()
    for t in threads:
        t.join()
    drain()
    drain()
    assert not errors
    assert orders == sorted(set(orders))
    assert len(seen) == len(set(seen))
    assert len(seen) + reader.lost == 4 * per_thread == reader.counters()["head"]


def test_not_a_ring(tmp_path: Path) -> None:
    for data in (b"", b"short", bytes(70_000)):
        file = tmp_path / "x"
        file.write_bytes(data)
        fd = os.open(file, os.O_RDONLY)
        try:
            with pytest.raises(RingError):
                RingReader(fd)
        finally:
            os.close(fd)


def test_sizes_that_make_no_ring(helper: Path, tmp_path: Path) -> None:
    copy = tmp_path / "x.so"
    shutil.copy(helper, copy)
    lib = ctypes.CDLL(str(copy))
    agent_helper._declare(lib)
    for slots, size in ((1, SLOT), (300, SLOT), (8, 1000), (8, 0)):
        with pytest.raises(agent_helper.NoHelper, match="could not be mapped"):
            agent_helper._make_ring(lib, 130001, strides("13.0"), slots, size)
    os.close(agent_helper._make_ring(lib, 130001, strides("13.0"), 8, SLOT))
    with pytest.raises(agent_helper.NoHelper):
        agent_helper._make_ring(lib, 130001, strides("13.0"), 8, SLOT)


def test_both_sides_name_the_counters_alike() -> None:
    assert agent_helper.COUNTERS == COUNTERS


def test_the_library_loads_on_old_systems(helper: Path) -> None:
    """Nothing newer than glibc 2.17 is wanted, and no library but the C library: servers live in old containers."""
    data = helper.read_bytes()
    wanted = {v for v in data.split(b"\0") if v.startswith(b"GLIBC_")}
    assert wanted
    assert all(tuple(map(int, v[6:].split(b"."))) <= (2, 17) for v in wanted), wanted
    done = subprocess.run(["ldd", str(helper)], capture_output=True, text=True, timeout=30, check=True)
    libraries = {line.split()[0].rpartition("/")[2] for line in done.stdout.splitlines()}
    assert all(name.startswith(("libc.so", "linux-vdso", "ld-linux", "libpthread")) for name in libraries), libraries
