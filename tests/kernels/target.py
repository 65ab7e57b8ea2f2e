"""A make-believe scheduler process with a mock libcupti: the agent's kernel tracing on it is the real one.

The main thread runs steps that "launch" kernels; the agent's thread takes commands as JSON lines from the descriptor
in argv[1] and ticks. argv[2]: path of the mock library. argv[3]: JSON of options.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import types
from collections import deque
from typing import Any

from sgtop_agent.kernels import control as control_module
from sgtop_agent.kernels.environment import Environment

STATS = ("calls", "forbidden", "emitted", "no_buffer", "dirty", "registered", "flushes", "forced", "returned",
         "requested", "overflow")  # fmt: skip


class Env(Environment):
    """A process whose torch says that CUDA is there."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.profiler = False

    def cuda_initialised(self) -> bool:
        return bool(self.options.get("cuda", True))

    def profiler_active(self) -> bool:
        return self.profiler

    def environ(self) -> dict[str, str]:
        return dict(self.options.get("environ", {}))

    def mapped(self) -> list[str]:
        return super().mapped() + list(self.options.get("mapped", []))


class Profiler:
    """As SGLang 0.5.16 and later: one that takes CUPTI's callbacks, as torch's profiler does."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.profile_in_progress = False
        self.seen: list[int] = []
        request_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        complete_type = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )
        self._pool = [ctypes.create_string_buffer(b"\xff" * (1 << 20), 1 << 20) for _ in range(8)]
        self._mine = {ctypes.addressof(b) for b in self._pool}
        self.unknown = 0
        self._free = list(self._mine)
        self._request, self._complete = request_type(self._on_request), complete_type(self._on_complete)

    def _on_request(self, buffer: int, size: int, records: int) -> None:
        ctypes.c_uint64.from_address(buffer).value = self._free.pop() if self._free else 0
        ctypes.c_uint64.from_address(size).value = 1 << 20
        ctypes.c_uint64.from_address(records).value = 0

    def _on_complete(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        if buffer not in self._mine:
            self.unknown += 1
            return
        self.seen.append(valid)
        self._free.append(buffer)

    def _start_profile(self, stage: object = None) -> str:
        lib = self._target.cupti
        self._target.at_profile = dict(self._target.control.state()["counters"])
        assert lib.mock_zeroed_attribute() == 0, "the buffers of torch's profiler are not zeroed"
        self.enabled_at_start = [k for k in (1, 2, 10) if lib.mock_enabled(k)]
        lib.cuptiActivityRegisterCallbacks(self._request, self._complete)
        lib.cuptiActivityEnable(10)
        self.profile_in_progress = True
        return "started"

    def _stop_profile(self, stage: object = None) -> str:
        lib = self._target.cupti
        lib.cuptiActivityDisable(10)
        lib.cuptiActivityFlushAll(1)
        lib.mock_clock(1)  # from now on CUPTI's clock counts TSC ticks
        self.profile_in_progress = False
        return "stopped"


class Scheduler:
    """What kernel tracing touches of SGLang's."""

    def __init__(self) -> None:
        self.forward_ct = 0
        self.profiler_manager: Any = None
        self.tp_worker: Any = None


class Target:
    def __init__(self, fd: int, library: str, options: dict[str, Any]) -> None:
        self.options = options
        self.socket = socket.socket(fileno=fd)
        self.cupti = ctypes.CDLL(library)
        for name in ("mock_stat", "mock_serial", "mock_device_ns", "mock_launch"):
            getattr(self.cupti, name).restype = ctypes.c_uint64
        self.cupti.mock_name.restype = ctypes.c_void_p
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self.cupti.mock_launch.argtypes = [u32, u32, u64, u32, u64, u64, u32]
        if "layout" in options:
            self.cupti.mock_configure(*options["layout"])
        self.own = Scheduler()
        self.scheduler: Any = self.own
        runner = types.SimpleNamespace(decode_cuda_graph_runner=None if options.get("no_graphs") else object())
        self.own.tp_worker = types.SimpleNamespace(model_runner=runner)
        self.own.profiler_manager = Profiler(self)
        self.env = Env(options)
        self.pending: list[Any] = []
        self.forwards: deque[tuple[int, ...]] = deque()
        self.launched = {1: 0, 2: 0, 10: 0}
        self.frames: list[dict[str, Any]] = []
        self.at_profile: dict[str, int] = {}
        self.run = True
        self.no_boundary = False
        self.stepping = bool(options.get("stepping", True))
        self.main_jobs: list[tuple[str, threading.Event, list[Any]]] = []
        self.pause_max = 0
        self.control = control_module.KernelControl(self, self.env)
        ring = options.get("ring")
        if ring:
            self.control._ring = tuple(ring)

    # Host
    def at_step(self, fn: Any) -> bool:
        if self.no_boundary:
            raise RuntimeError("the hooks are off")
        self.pending.append(fn)
        return True

    def emit(self, frame: Any) -> None:
        self.frames.append(dict(frame))

    def both_clocks(self) -> tuple[int, int]:
        """CLOCK_MONOTONIC and the device's clock, read within 20 µs of each other."""
        while True:
            t, d = time.monotonic_ns(), self.cupti.mock_device_ns()
            if time.monotonic_ns() - t < 20_000:
                return t, d

    # main thread
    def step(self) -> None:
        while self.pending:
            t = time.monotonic_ns()
            self.pending.pop(0)()
            self.pause_max = max(self.pause_max, time.monotonic_ns() - t)
        o = self.options
        decode = self.own.forward_ct % 4 != 0
        n = o.get("kernels", 40) if decode else o.get("kernels", 40) // 2
        t0, d0 = self.both_clocks()
        lib = self.cupti
        lib.mock_launch(1, 7, 0, 2, 300, 200, 0)
        end = lib.mock_launch(10, 7, 0, n, 2_000, 300, 3 if decode else 0)
        last = lib.mock_launch(2, 7, 0, 1, 200, 100, 0)
        t1 = time.monotonic_ns()
        self.launched[1] += 2
        self.launched[10] += n
        self.launched[2] += 1
        gpu1 = t0 + (end - d0)
        self.own.forward_ct += 1
        ct = self.own.forward_ct
        # ct, runner, mode, t0, t1, gpu0, gpu1, gpu2, bs, tokens, graph
        self.forwards.append((ct, 0, 2 if decode else 1, t0, t1, t0, gpu1, t0 + (last - d0), 8, 8, int(decode)))

    def main(self) -> None:
        threading.Thread(target=self.agent, daemon=True).start()
        while self.run:
            if self.main_jobs:
                fn, done, out = self.main_jobs.pop(0)
                try:
                    out.append(getattr(self.own.profiler_manager, fn)())
                except BaseException as e:
                    out.append(repr(e))
                done.set()
            if self.stepping:
                self.step()
            time.sleep(self.options.get("step_s", 0.002))

    # the agent's thread
    def agent(self) -> None:
        try:
            self.serve()
        finally:
            self.run = False

    def serve(self) -> None:
        self.socket.settimeout(0.02)
        buffered = b""
        while self.run:
            try:
                data = self.socket.recv(65536)
                if not data:
                    self.control.close()
                    return
                buffered += data
            except TimeoutError:
                pass
            while b"\n" in buffered:
                line, buffered = buffered.split(b"\n", 1)
                reply, fds = self.handle(json.loads(line))
                raw = json.dumps(reply).encode() + b"\n"
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                self.socket.settimeout(5)
                sent = self.socket.sendmsg([raw], rights)
                self.socket.sendall(raw[sent:])
                self.socket.settimeout(0.02)
            self.control.tick(time.monotonic_ns())

    def handle(self, c: dict[str, Any]) -> tuple[Any, list[int]]:
        op = c["op"]
        if op == "kernels":
            try:
                state = self.control.command(c.get("client", 1), c["args"])
            except ValueError as e:
                return {"error": str(e)}, []
            fd = self.control.reader_fd()
            return state, [] if fd is None else [fd]
        if op == "gone":
            self.control.gone(c["client"])
            return {}, []
        if op == "names":
            return self.control.names(c["pointers"]), []
        if op == "state":
            frames, self.frames = self.frames, []
            return {"state": self.control.state(), "frames": frames}, []
        if op == "mock":
            return {"result": getattr(self.cupti, c["fn"])(*c["args"])}, []
        if op == "options":
            self.options.update(c["set"])
            self.stepping = bool(self.options.get("stepping", True))
            return {}, []
        if op == "stats":
            out = {name: self.cupti.mock_stat(i) for i, name in enumerate(STATS)}
            serial = {k: self.cupti.mock_serial(k) for k in (1, 2, 10)}
            return {
                "mock": out, "serial": serial, "launched": self.launched, "ct": self.own.forward_ct,
                "enabled": [k for k in range(64) if self.cupti.mock_enabled(k)], "pause_max": self.pause_max,
                "patched": sorted(vars(self.own.profiler_manager).keys() & {"_start_profile", "_stop_profile"}),
                "threads": sorted(open(f"/proc/self/task/{t}/comm").read().strip()
                                  for t in os.listdir("/proc/self/task")),
                "fds": len(os.listdir("/proc/self/fd")),
                "maps": [line.split()[-1] for line in open("/proc/self/maps") if "sgtop" in line or "/fd/" in line],
            }, []  # fmt: skip
        if op == "forwards":
            return [self.forwards.popleft() for _ in range(len(self.forwards))], []
        if op == "profile":
            done, out = threading.Event(), []
            self.main_jobs.append((c["fn"], done, out))
            # The agent's thread goes on ticking meanwhile, as the real one does.
            while not done.wait(0.005):
                self.control.tick(time.monotonic_ns())
            p = self.own.profiler_manager
            return {"result": out[0], "seen": p.seen, "unknown": p.unknown, "before": self.at_profile,
                    "enabled_at_start": getattr(p, "enabled_at_start", None)}, []  # fmt: skip
        if op == "close":
            t = time.monotonic()
            if c.get("hooks_are_gone"):  # as the agent does: no boundary and no scheduler by then
                self.no_boundary, self.scheduler = True, None
            self.control.close()
            self.no_boundary, self.scheduler = False, self.own
            took = time.monotonic() - t
            if c.get("again"):
                self.control = control_module.KernelControl(self, self.env)
            return {"took": took}, []
        raise ValueError(op)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Target(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])).main()
