"""Kernel tracing beside plain CUDA graph replays, without SGLang: the first thing to run on a new GPU, driver or torch.

    python bench/gpu/kernels_replay.py [--budget 540] [--records 30e6] [--only cycles cost profile soak]

A child process captures a graph and replays it for ever; the agent's kernel tracing runs in it as in a scheduler, and
this process reads the ring. A JSON line a check:

* ``cycles``: 50 times on and off; each time the kernels read must be those of the replays in between, to the kernel
* ``eager``: the same with kernels launched one by one
* ``cost``: µs a replay on ÷ off, interleaved pairs; main-thread time of each switch
* ``profile``: torch's profiler before, during and after tracing sees every kernel, and tracing comes back
* ``soak``: so many records in one go: lost, without timestamps, GPU memory, resident memory

Needs torch with CUDA, numpy and a C compiler (or the built helper). The last line sums up; exit status 1 if a check
failed. A child that dies is reported, with its exit status, and ends the run.
"""

from __future__ import annotations

import argparse
import array
import importlib.util
import json
import os
import socket
import statistics
import subprocess
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


# --- the child --------------------------------------------------------------------------------------------------------


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


# --- the parent -------------------------------------------------------------------------------------------------------


class Died(RuntimeError):
    """The child ended by itself."""


class Parent:
    """Starts the child and reads its ring."""

    def __init__(self, end: float) -> None:
        from sgtop_core.kernels.tracker import KernelTracker

        self.end = end
        here, there = socket.socketpair()
        self.socket = here
        self.child = subprocess.Popen(
            [sys.executable, __file__, "--child", str(there.fileno())], pass_fds=[there.fileno()]
        )
        there.close()
        self.socket.settimeout(120)
        self._buffered = b""
        self.tracker = KernelTracker({})

    def ask(self, op: str, **more: Any) -> Any:
        try:
            self.socket.sendall(json.dumps({"op": op, **more}).encode() + b"\n")
            while b"\n" not in self._buffered:
                data, control, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
                if not data:
                    raise Died(f"the child ended with {self.child.wait(20)}")
                for _, _, raw in control:
                    fd = array.array("i", raw)[0]
                    self.tracker.on_ring(fd)
                    os.close(fd)
                self._buffered += data
        except (TimeoutError, OSError) as e:
            raise Died(f"the child does not answer ({e}); exit status {self.child.poll()}")
        line, self._buffered = self._buffered.split(b"\n", 1)
        return json.loads(line)

    def poll(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tracker.poll(time.monotonic_ns())
            wanted = self.tracker.names_wanted()
            if wanted:
                self.tracker.names.answer(self.ask("names", pointers=wanted))
            time.sleep(0.02)

    def until(self, *states: str, timeout: float = 20.0) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while True:
            self.poll(0.02)
            state: dict[str, Any] = self.ask("state")["state"]
            if state["state"] in states:
                return state
            if time.monotonic() > end or state["state"] == "failed":
                raise RuntimeError(f"not {states} but {state['state']}: {state['reason']}")

    def off(self) -> dict[str, Any]:
        self.ask("kernels", mode="off")
        state = self.until("off")
        self.poll(0.1)
        return state

    def kernels(self) -> int:
        """Kernel records read so far (no copies or sets run)."""
        return self.tracker.records


def cycles(p: Parent, n: int, eager: bool) -> dict[str, Any]:
    p.ask("eager", on=eager)
    time.sleep(0.3)
    wrong, took, counts = [], [], []
    for k in range(n):
        before, expected = p.kernels(), p.ask("state")["expected"]
        p.ask("kernels", mode="on")
        p.until("tracing")
        p.poll(0.25)
        t = time.monotonic()
        state = p.off()
        took.append(time.monotonic() - t)
        got, want = p.kernels() - before, p.ask("state")["expected"] - expected
        counts.append(want)
        if got != want:
            wrong.append({"cycle": k, "read": got, "launched": want})
        p.tracker.on_state(state)
    p.ask("eager", on=False)
    switches = [w[3:5] for w in p.ask("state")["state"]["windows"]]
    return {
        "cycles": n, "kernels": sum(counts), "wrong": wrong[:5], "wrong_cycles": len(wrong),
        "off_s_max": round(max(took), 3), "enable_us_p50": statistics.median(s[0] for s in switches) / 1e3,
        "disable_us_p50": statistics.median(s[1] for s in switches) / 1e3, "ok": not wrong and sum(counts) > 0,
    }  # fmt: skip


def cost(p: Parent, pairs: int, seconds: float) -> dict[str, Any]:
    def rate() -> float:
        a, t = p.ask("state")["replays"], time.monotonic()
        p.poll(seconds)
        return float(p.ask("state")["replays"] - a) / (time.monotonic() - t)

    ratios = []
    for _ in range(pairs):
        off = rate()
        p.ask("kernels", mode="on")
        p.until("tracing")
        p.poll(0.2)
        on = rate()
        p.off()
        p.poll(0.2)
        ratios.append(on / off)
    return {"pairs": pairs, "throughput_on_over_off": round(statistics.median(ratios), 4),
            "low": round(min(ratios), 4), "high": round(max(ratios), 4), "ok": True}  # fmt: skip


def profile(p: Parent) -> dict[str, Any]:
    """Kernels of torch's trace against replays while it ran: before, during and after our tracing."""
    out: dict[str, Any] = {}

    def one(name: str) -> None:
        start = p.ask("profile", fn="_start_profile")
        p.poll(1.0)
        stop = p.ask("profile", fn="_stop_profile")
        kernels = stop["result"] if isinstance(stop["result"], int) else 0
        out[name] = {"kernels": kernels, "expected": (stop["replays"] - start["replays"]) * 2 * LAYERS,
                     "said": None if isinstance(stop["result"], int) else stop["result"]}  # fmt: skip

    one("before")
    p.ask("kernels", mode="on")
    p.until("tracing")
    p.poll(0.5)
    one("during")
    p.until("tracing")
    records, t = p.kernels(), time.monotonic()
    p.poll(1.0)
    back = (p.kernels() - records) / (time.monotonic() - t)
    p.off()
    one("after")
    # A profile's edges may cut a replay.
    full = all(abs(x["kernels"] - x["expected"]) <= 4 * LAYERS for x in out.values() if isinstance(x, dict))
    fit = p.tracker.clock.fit
    return {**out, "records_per_s_when_back": round(back), "clock_switches": p.tracker.clock.switches,
            "clock_slope": fit.slope if fit else None, "clock_error_ns": fit.error_ns if fit else None,
            "ok": full and back > 1000}  # fmt: skip


def soak(p: Parent, records: float) -> dict[str, Any]:
    begin, expected = p.kernels(), p.ask("state")["expected"]
    first = p.ask("state")
    p.ask("kernels", mode="on")
    p.until("tracing")
    memory = []
    t = time.monotonic()
    while p.kernels() - begin < records and time.monotonic() < p.end - 15:
        p.poll(2.0)
        s = p.ask("state")
        memory.append((s["gpu_mib"], s["rss_kb"]))
        if s["state"]["state"] == "failed":
            break
    seconds = time.monotonic() - t
    state = p.ask("state")["state"]
    p.ask("kernels", mode="off")
    try:
        p.until("off", "failed")
    except RuntimeError:
        pass
    p.poll(0.3)
    read, want = p.kernels() - begin, p.ask("state")["expected"] - expected
    half = memory[len(memory) // 2 :]
    return {
        "records": read, "launched": want, "seconds": round(seconds, 1), "per_s": round(read / max(seconds, 0.1)),
        "lost_buffers": p.tracker._ring.lost if p.tracker._ring else None, "untimed": p.tracker.untimed,
        "state": state["state"], "reason": state["reason"], "late": state["counters"]["late"],
        "spilled": state["counters"]["spilled"], "starved": state["counters"]["starved"],
        "gpu_mib": round(memory[-1][0] if memory else 0, 1), "rss_mib_before": first["rss_kb"] // 1024,
        "rss_mib_half": half[0][1] // 1024 if half else None, "rss_mib_end": half[-1][1] // 1024 if half else None,
        "ok": read == want and read >= records and not p.tracker.untimed,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=540.0)
    parser.add_argument("--records", type=float, default=30e6)
    parser.add_argument("--only", nargs="+", default=["cycles", "eager", "cost", "profile", "soak"])
    a = parser.parse_args()
    if a.child is not None:
        Child(a.child).main()
        return 0
    spec = importlib.util.spec_from_file_location("native_build", REPO / "agent" / "native" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    native.build(REPO / "agent" / "sgtop_agent" / "kernels" / "sgring.so")
    end = time.monotonic() + a.budget
    checks: dict[str, Any] = {
        "cycles": lambda p: cycles(p, 50, False),
        "eager": lambda p: cycles(p, 10, True),
        "cost": lambda p: cost(p, 10, 1.0),
        "profile": profile,
        "soak": lambda p: soak(p, a.records),
    }
    p = Parent(end)
    failed = []
    try:
        state = p.ask("state")
        print(
            json.dumps({"check": "start", "gpu_mib": state["gpu_mib"], "rss_mib": state["rss_kb"] // 1024}), flush=True
        )
        for name in a.only:
            if time.monotonic() > end - 20:
                result: dict[str, Any] = {"ok": False, "skipped": "out of time"}
            else:
                t = time.monotonic()
                try:
                    result = checks[name](p)
                except RuntimeError as e:
                    if isinstance(e, Died):
                        raise
                    result = {"ok": False, "error": str(e)}
                result["took_s"] = round(time.monotonic() - t, 1)
            print(json.dumps({"check": name, **result}), flush=True)
            if not result["ok"]:
                failed.append(name)
        view = p.tracker.view(time.monotonic_ns(), 600)
        table = [{"name": k.name, "category": k.category, "count": k.count, "avg_us": round(k.avg_us, 3)}
                 for m in view.modes for k in m.rows[:5]]  # fmt: skip
        print(json.dumps({"check": "table", "rows": table, "cupti": p.ask("state")["state"]["cupti"]}), flush=True)
    except Died as e:
        failed.append("died")
        print(json.dumps({"check": "died", "ok": False, "error": str(e)}), flush=True)
    finally:
        p.socket.close()
        try:
            p.child.wait(15)
        except subprocess.TimeoutExpired:
            p.child.kill()
    print(json.dumps({"bench": "kernels_replay", "failed": failed}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
