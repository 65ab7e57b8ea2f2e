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
import time
from pathlib import Path
from typing import Any

import replay_child
from replay_child import LAYERS

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / part) for part in ("agent", "probes", "core")]


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
            [sys.executable, replay_child.__file__, str(there.fileno())], pass_fds=[there.fileno()]
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
    parser.add_argument("--budget", type=float, default=540.0)
    parser.add_argument("--records", type=float, default=30e6)
    parser.add_argument("--only", nargs="+", default=["cycles", "eager", "cost", "profile", "soak"])
    a = parser.parse_args()
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
