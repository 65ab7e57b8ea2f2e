"""What ``kernels_replay.py`` traces: one CUDA graph replayed for ever, with the agent's kernel tracing in the process.

python bench/gpu/replay_child.py FD      # started by kernels_replay.py; FD: a socket, one JSON object a line each way
"""

from __future__ import annotations

import array
import json
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / part) for part in ("agent", "probes", "core")]
LAYERS = 150
"""Pairs of a matrix product and an activation: 300 kernels a replay."""


class Profiler:
    """Starts and stops torch's profiler on the main thread, under the names that SGLang's manager has."""

    def __init__(self) -> None:
        self.profile_in_progress = False
        self._profile: Any = None

    def _start_profile(self) -> None:
        import torch

        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profile.start()
        self.profile_in_progress = True

    def _stop_profile(self) -> int:
        """Kernels in the trace."""
        self._profile.stop()
        kernels = sum(1 for e in self._profile.events() if str(e.device_type).endswith("CUDA"))
        self._profile, self.profile_in_progress = None, False
        return kernels


class Child:
    """A scheduler of one endless batch."""

    def __init__(self, fd: int) -> None:
        import torch
        from sgtop_agent.kernels.control import KernelControl

        self.torch = torch
        self.socket = socket.socket(fileno=fd)
        self.forward_ct = 0
        self.profiler_manager = Profiler()
        self.scheduler = self
        self.pending: deque[Any] = deque()
        self.eager = False
        self.run = True
        self.replays: dict[str, int] = {"all": 0, "traced": 0}
        self.expected = 0
        self.control = KernelControl(self)
        x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) * 0.03

        def body() -> Any:
            y = x
            for _ in range(LAYERS):
                y = torch.nn.functional.silu(y @ w)
            return y

        self.body = body
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                body()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.out = body()
        torch.cuda.synchronize()
        self.free = torch.cuda.mem_get_info()[0]

    def at_step(self, fn: Any) -> bool:
        self.pending.append(fn)
        return True

    def emit(self, frame: Any) -> None:
        pass

    def main(self) -> None:
        torch = self.torch
        threading.Thread(target=self.agent, daemon=True).start()
        with torch.cuda.stream(self.stream):
            events = [torch.cuda.Event() for _ in range(2)]
            n = 0
            while self.run:
                while self.pending:
                    self.pending.popleft()()
                if n > 1:
                    events[n & 1].synchronize()
                session = self.control._session
                if self.eager:
                    self.body()
                else:
                    self.graph.replay()
                events[n & 1].record()
                n += 1
                self.forward_ct += 1
                if session is not None and session.on:
                    self.expected += 2 * LAYERS
        torch.cuda.synchronize()

    def on_main(self, fn: Any) -> Any:
        """Run on the main thread between two replays; the agent's thread goes on ticking."""
        done, out = threading.Event(), []

        def job() -> None:
            try:
                out.append(fn())
            except BaseException as e:
                out.append(repr(e))
            done.set()

        self.pending.append(job)
        while not done.wait(0.01):
            self.control.tick(time.monotonic_ns())
        return out[0]

    def agent(self) -> None:
        try:
            buffered = b""
            self.socket.settimeout(0.02)
            while self.run:
                try:
                    data = self.socket.recv(65536)
                    if not data:
                        break
                    buffered += data
                except TimeoutError:
                    pass
                while b"\n" in buffered:
                    line, buffered = buffered.split(b"\n", 1)
                    reply, fds = self.handle(json.loads(line))
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
                    self.socket.settimeout(10)
                    raw = json.dumps(reply).encode() + b"\n"
                    self.socket.sendall(raw[self.socket.sendmsg([raw], rights) :])
                    self.socket.settimeout(0.02)
                self.control.tick(time.monotonic_ns())
        finally:
            self.control.close()
            self.run = False

    def handle(self, c: dict[str, Any]) -> tuple[Any, list[int]]:
        op = c["op"]
        if op == "kernels":
            state = self.control.command(1, {"mode": c["mode"]})
            fd = self.control.reader_fd()
            return state, [] if fd is None else [fd]
        if op == "state":
            status = Path("/proc/self/status").read_text()
            rss = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
            return {
                "state": self.control.state(), "replays": self.forward_ct, "expected": self.expected, "rss_kb": rss,
                "gpu_mib": (self.free - self.torch.cuda.mem_get_info()[0]) / 2**20,
            }, []  # fmt: skip
        if op == "eager":
            self.eager = bool(c["on"])
            return {}, []
        if op == "names":
            return self.control.names(c["pointers"]), []
        if op == "profile":
            return {"result": self.on_main(getattr(self.profiler_manager, c["fn"])), "replays": self.forward_ct}, []
        raise ValueError(op)


if __name__ == "__main__":
    Child(int(sys.argv[1])).main()
