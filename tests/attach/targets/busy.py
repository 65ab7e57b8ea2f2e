"""A process to attach to: ``busy.py MODE SECONDS [NATIVE.so]``. Python 3.10 and later, standard library.

The main thread does what MODE says and checks its own results; three helper threads allocate and sort beside it. It
prints ``READY``, and at SIGTERM (or after SECONDS) one line of JSON. Injected code finds ``RUNS`` in ``__main__``.
"""

import ctypes
import faulthandler
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

RUNS = 0
ERRORS = 0
LOOPS = 0
GAPS = []  # (ns, when) of stalls longer than STALL_NS that the main thread saw by its own clock
STALL_NS = int(os.environ.get("STALL_NS", "0"))
HELPERS = int(os.environ.get("HELPERS", "3"))

stop = False
last = 0


def running():
    """Once a loop: counts, notes stalls, says whether to go on."""
    global LOOPS, last
    LOOPS += 1
    now = time.perf_counter_ns()
    if STALL_NS and last and now - last > STALL_NS:
        GAPS.append((now - last, now))
    last = now
    return not stop and time.monotonic() < END


def check(good):
    global ERRORS
    if not good:
        ERRORS += 1


def helper():
    while not stop:
        sorted(str(i) * 3 for i in range(2000))
        time.sleep(0.002)


def spin():
    while running():
        for _ in range(100):
            pass


def objects():
    while running():
        table = {("k", i): [i, str(i), {"x": i}] for i in range(300)}
        check(sum(v[0] for v in table.values()) == 44850)
        check(all(table["k", i][1] == str(i) for i in range(300)))


def imports():
    names = ["json", "json.decoder", "json.encoder", "json.scanner", "csv", "decimal", "fractions", "statistics"]
    while running():
        for name in names:
            sys.modules.pop(name, None)
        import csv
        import json as fresh
        import statistics

        check(fresh.loads(fresh.dumps({"a": [1, 2]})) == {"a": [1, 2]} and csv and statistics)


def floats():
    """Vector registers in C without the GIL: a borrowed thread must get them back bit by bit."""
    expected = NATIVE.float_loop(3_000_000)
    while running():
        check(NATIVE.float_loop(3_000_000) == expected)


def mallocs():
    while running():
        NATIVE.malloc_loop(400_000)


def mallocs_gil():
    while running():
        NATIVE_GIL.malloc_loop(100_000)


def dlopens():
    while running():
        NATIVE.dlopen_loop(b"libm.so.6", b"libresolv.so.2", 200)


def dlopens_beside():
    """Another thread loads libraries with the GIL held; the main one spins."""

    def load():
        while not stop:
            NATIVE_GIL.dlopen_loop(b"libm.so.6", b"libresolv.so.2", 20)
            time.sleep(0.0005)

    threading.Thread(target=load, daemon=True).start()
    spin()


def long_c():
    while running():
        NATIVE.spin_ms(700)


def long_c_gil():
    while running():
        NATIVE_GIL.spin_ms(700)


def recv():
    ours, _theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))
    call = ctypes.CDLL(None, use_errno=True).recv
    buffer = ctypes.create_string_buffer(8)
    while running():
        check(call(ours.fileno(), buffer, 1, 0) == -1 and ctypes.get_errno() in (4, 11))


def epoll():
    ours, _theirs = socket.socketpair()
    poller = select.epoll()
    poller.register(ours, select.EPOLLIN)
    _timed(lambda: poller.poll(0.5), 0.5)


def futex():
    lock = threading.Lock()
    lock.acquire()
    _timed(lambda: lock.acquire(timeout=0.5), 0.5)


def nanosleep():
    _timed(lambda: time.sleep(0.5), 0.5)


def _timed(wait, seconds):
    """A time-out must not come early; how late it comes is the machine's affair."""
    while running():
        start = time.monotonic()
        wait()
        check(time.monotonic() - start > seconds - 0.01)


def scheduler():
    """Like an SGLang event loop: polls, sorts, runs native code without the GIL."""
    ours, _theirs = socket.socketpair()
    ours.setblocking(False)
    expected = NATIVE.float_loop(200_000)
    while running():
        try:
            ours.recv(10)
        except BlockingIOError:
            pass
        requests = sorted(({"rid": str(i), "length": i} for i in range(64)), key=lambda r: -r["length"])
        check(requests[0]["length"] == 63)
        check(NATIVE.float_loop(200_000) == expected)
        NATIVE.malloc_loop(2000)


def forever():
    """Blocked in C until SIGTERM: the main thread never comes back to Python by itself."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def parked():
    """Quiet, with threads that sleep in a futex for ever, as a scheduler's do."""
    lock = threading.Lock()
    lock.acquire()
    for _ in range(3):
        threading.Thread(target=lock.acquire, daemon=True).start()
    quiet()


def parked_spin():
    """As ``parked``, but the main thread never rests, and lets go of the GIL now and then as a scheduler does."""
    lock = threading.Lock()
    lock.acquire()
    for _ in range(3):
        threading.Thread(target=lock.acquire, daemon=True).start()
    ours, _theirs = socket.socketpair()
    ours.setblocking(False)
    while running():
        if LOOPS % 1000 == 0:
            select.select([ours], [], [], 0)


def nap():
    """Blocked in C for four seconds, then back in Python: what was queued meanwhile runs late."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=4)
    quiet()


def signals():
    """Counts queued signals while it works: none may get lost."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())  # a byte a signal; Python's own handlers may run once for several
    signal.signal(signal.SIGRTMIN + 3, lambda *_: None)
    print("READY", flush=True)
    global RUNS
    while running():
        NATIVE.malloc_loop(2000)
        try:
            RUNS += ours.recv(65536).count(signal.SIGRTMIN + 3)
        except BlockingIOError:
            pass


def quiet():
    """Asleep most of the time, and alone with its GIL: the smallest target that works."""
    while running():
        time.sleep(0.01)


MODES = {
    f.__name__: f
    for f in (
        spin, objects, imports, floats, mallocs, mallocs_gil, dlopens, dlopens_beside, long_c, long_c_gil, recv, epoll,
        futex, nanosleep, scheduler, forever, quiet, parked, parked_spin, nap,
        signals,
    )
}  # fmt: skip


def on_term(*_):
    global stop
    stop = True


if __name__ == "__main__":
    faulthandler.enable()  # as SGLang does: it handles SIGSEGV, which a borrowed call ends with
    mode, END = sys.argv[1], time.monotonic() + float(sys.argv[2])
    if len(sys.argv) > 3:
        NATIVE, NATIVE_GIL = ctypes.CDLL(sys.argv[3]), ctypes.PyDLL(sys.argv[3])
        for library in (NATIVE, NATIVE_GIL):
            library.float_loop.restype = ctypes.c_double
    if mode != "forever":
        signal.signal(signal.SIGTERM, on_term)
    for _ in range(HELPERS):
        threading.Thread(target=helper, daemon=True).start()
    if mode != "signals":
        print("READY", flush=True)
    MODES[mode]()
    names = sorted(t.name for t in threading.enumerate())
    report = {"runs": RUNS, "errors": ERRORS, "loops": LOOPS, "gaps": GAPS, "threads": names}
    report["modules"] = sorted(m for m in sys.modules if "sgtop" in m)
    report["finders"] = sum(hasattr(f, "sgtop_alias") for f in (*sys.meta_path, *sys.path_importer_cache.values()))
    print(json.dumps(report), flush=True)
    os._exit(0)
