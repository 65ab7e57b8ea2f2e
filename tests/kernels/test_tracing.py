"""Kernel tracing end to end on a make-believe scheduler: real agent code, real helper, mock libcupti, real reader."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sgtop_core.kernels.layout import dtypes
from sgtop_core.kernels.ring import RingReader
from sgtop_core.kernels.tracker import KernelTracker
from sgtop_core.model.kernel_view import OUTSIDE

from .conftest import AGENT, Process
from .records import LAYOUTS, strides

Start = Callable[..., Process]
FORWARD = ("ct", "runner", "mode", "t0", "t1", "gpu0", "gpu1", "gpu2", "bs", "tokens", "graph")
ON = {"mode": "on"}


class Client:
    """sgtop's side: what the session does with a tracker."""

    def __init__(self, process: Process, args: dict[str, Any], client: int = 1) -> None:
        self.process, self.client = process, client
        self.tracker = KernelTracker({1: "EXTEND", 2: "DECODE"})
        self.want(args)

    def want(self, args: dict[str, Any]) -> dict[str, Any]:
        state, fd = self.process.ask("kernels", args=args, client=self.client)
        if fd is not None:
            self.tracker.on_ring(fd)
            os.close(fd)
        if "error" not in state:
            self.tracker.on_state(state)
        return dict(state)

    def turn(self) -> int:
        self.tracker.on_state(self.process.state())
        rows = self.process.do("forwards")
        if rows:
            columns = np.array(rows, np.int64).T
            self.tracker.on_forwards(dict(zip(FORWARD, columns, strict=True)))
        n = self.tracker.poll(time.monotonic_ns())
        wanted = self.tracker.names_wanted()
        if wanted:
            self.tracker.names.answer(self.process.do("names", pointers=wanted))
        return n

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()
            time.sleep(0.02)

    def view(self, window: float = 60.0) -> Any:
        return self.tracker.view(time.monotonic_ns(), window)


def settled(p: Process) -> dict[str, Any]:
    """State once tracing is off and every buffer is back."""
    return p.until(lambda s: s["state"] in ("off", "waiting", "failed") and s["counters"]["lent"] == 0)


def checksum(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The mock's checksum of a record."""
    with np.errstate(over="ignore"):
        x = (start ^ (end << np.uint64(1)) ^ np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    return (x >> np.uint64(32)).astype(np.uint32)


def raw_kernels(buffers: list[Any], layout: str) -> np.ndarray:
    """Kernel records of raw buffers with serial number and checksum, walked one by one."""
    size = strides(layout)
    kind = np.dtype({"names": ["start", "end", "check", "serial"], "formats": ["<u8", "<u8", "<u4", "<i8"],
                     "offsets": [16, 24, 92, 96], "itemsize": size[10]})  # fmt: skip
    out = []
    for b in buffers:
        at = 0
        while at < len(b.data):
            k = int(b.data[at : at + 4].view("<u4")[0])
            if k == 10:
                out.append(b.data[at : at + size[10]].view(kind))
            at += size[k]
    return np.concatenate(out)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kernel_once_in_every_layout(start: Start, layout: str) -> None:
    p = start(layout=LAYOUTS[layout], no_graphs=LAYOUTS[layout][0] < 24)
    client = Client(p, ON)
    client.run(1.0)
    state, fd = p.ask("kernels", args=ON)
    assert fd is not None
    assert state["cupti"] == LAYOUTS[layout][0]
    reader = RingReader(fd)
    os.close(fd)
    assert reader.strides == strides(layout)
    buffers = []
    for _ in range(20):
        client.run(0.05)
        buffers += reader.poll()
    client.want({"mode": "off"})
    settled(p)
    buffers += reader.poll()
    p.do("options", set={"stepping": False})
    client.run(4.0)  # what still waits for its forward is counted

    stats = p.do("stats")
    kernels = raw_kernels(buffers, layout)
    assert (kernels["check"] == checksum(kernels["start"], kernels["end"])).all()
    serials = np.sort(kernels["serial"])
    assert (np.diff(serials) == 1).all()
    assert reader.lost == client.tracker._ring.lost == 0  # type: ignore[union-attr]
    assert client.tracker.records == sum(stats["serial"].values()) == stats["mock"]["emitted"]
    assert client.tracker.untimed == 0

    view = client.view()
    tables = {m.mode: m for m in view.modes}
    assert set(tables) == {"EXTEND", "DECODE"}, "every kernel has its forward"
    counted, cut = sum(m.launches for m in view.modes), client.tracker.cut
    assert counted == stats["mock"]["emitted"], f"{cut} cut"
    for mode, kernels_a_step, graph in (("DECODE", 40, 1.0), ("EXTEND", 20, 0.0)):
        table = tables[mode]
        assert table.launches_per_step == kernels_a_step + 3
        assert table.graph_share == graph
        assert sum(r.per_step for r in table.rows) == pytest.approx(kernels_a_step + 3)
        assert sum(r.share for r in table.rows) == pytest.approx(1)
        for row in table.rows:
            if row.category != "copy" or "elementwise" in row.name:
                assert (row.min_us, row.avg_us, row.max_us) == (2.0, 2.0, 2.0)
                assert row.med_us == pytest.approx(2.0, rel=0.02)
                assert row.total_ms == pytest.approx(row.count * 0.002)
    names = {r.name for r in tables["DECODE"].rows}
    assert {"fused_moe_kernel", "RMSNormKernel", "flash_fwd_splitkv_kernel", "memcpy HtoD", "memset"} <= names
    assert {c.kind: c.count for c in view.copies} == {
        "memcpy HtoD": stats["serial"]["1"],
        "memset": stats["serial"]["2"],
    }
    gaps = {g.mode: g for g in view.gaps}
    steps = tables["DECODE"].forwards
    assert gaps["DECODE"].count == pytest.approx(43 * steps, abs=2), "copies and sets end gaps too"
    assert gaps["DECODE"].p50_us == pytest.approx(0.3, rel=0.02)
    kernel_wait_us = gaps["DECODE"].causes_ms["kernel wait"] / steps * 1e3
    # 39 gaps of 0.3 µs between kernels, and three around copies, of which the last waits for its launch.
    assert 39 * 0.3 <= kernel_wait_us <= 39 * 0.3 + 3 * 5
    assert gaps["DECODE"].causes_ms["host wait"] > 10 * gaps["DECODE"].causes_ms["kernel wait"]
    assert sum(gaps["DECODE"].histogram.counts) == gaps["DECODE"].count
    assert 0 < view.busy_share < 0.2
    assert 0 < view.communication_share < view.busy_share
    assert view.event_busy_share >= view.busy_share, "events hold the gaps between kernels too"
    assert stats["mock"]["forbidden"] == stats["mock"]["dirty"] == 0
    assert stats["enabled"] == []


def test_strides_are_measured_and_known() -> None:
    for layout, (_, kernel, memcpy, memset) in LAYOUTS.items():
        assert {k: t.itemsize for k, t in dtypes(strides(layout)).items()} == {10: kernel, 1: memcpy, 2: memset}


def test_windows(start: Start) -> None:
    p = start()
    client = Client(p, {"mode": "windows", "window_s": 0.3, "period_s": 0.8})
    enabled = []
    end = time.monotonic() + 4.0
    while time.monotonic() < end:
        enabled.append(bool(p.do("stats")["enabled"]))
        client.turn()
        time.sleep(0.02)
    assert 0.2 < sum(enabled) / len(enabled) < 0.6
    client.run(3.3)
    windows = p.state()["windows"]
    assert len(windows) >= 4
    for (_, on, off, enable_ns, disable_ns), after in itertools.pairwise(windows):
        assert 0.3e9 <= off - on < 0.6e9
        assert after[1] - on >= 0.8e9
        assert 0 < enable_ns < 50e6
        assert 0 < disable_ns < 50e6
    view = client.view()
    assert view.mode == "windows"
    assert [m.mode for m in view.modes] == ["EXTEND", "DECODE"]
    assert view.modes[1].launches_per_step == pytest.approx(43, abs=0.5)
    assert view.inflation["DECODE"] == pytest.approx(1, abs=0.5)
    stats = p.do("stats")
    assert stats["mock"]["forbidden"] == 0, "a forced flush while kinds were enabled"
    # A short look shows the latest window, however long ago it was.
    assert client.view(0.1).modes
    client.want({"mode": "off"})
    settled(p)
    assert p.do("stats")["enabled"] == []


def test_the_users_profiler_gets_everything_and_tracing_comes_back(start: Start) -> None:
    p = start()
    client = Client(p, ON)
    client.run(1.0)
    before = client.tracker.records
    reply = p.do("profile", fn="_start_profile")
    assert reply["result"] == "started"
    assert reply["enabled_at_start"] == [], "our kinds were still enabled"
    assert reply["before"]["lent"] == 0, "CUPTI still held buffers of ours"
    assert p.state()["state"] == "yielded"
    client.run(1.0)
    assert p.do("stats")["enabled"] == [10], "the profiler's kind was touched"
    reply = p.do("profile", fn="_stop_profile")
    assert reply["result"] == "stopped"
    assert reply["unknown"] == 0, "the profiler was given buffers that are not its own"
    assert sum(reply["seen"]) > 100_000
    p.until(lambda s: s["state"] == "tracing")
    client.run(4.5)
    # CUPTI's clock counts TSC ticks now. Kernels must still fall into their forwards.
    assert client.tracker.clock.switches == 1
    assert client.tracker.records > before + 5_000
    view = client.view()
    assert OUTSIDE not in {m.mode for m in view.modes}
    decode = next(m for m in view.modes if m.mode == "DECODE")
    assert decode.launches_per_step == pytest.approx(43, abs=0.1)
    for row in decode.rows:
        if row.name == "fused_moe_kernel":
            assert row.avg_us == pytest.approx(2.0, rel=0.01)
    stats = p.do("stats")
    assert stats["mock"]["forbidden"] == stats["mock"]["dirty"] == 0
    assert p.state()["counters"]["foreign"] == 0


def test_a_profile_in_a_window_and_switching_off_meanwhile(start: Start) -> None:
    p = start()
    client = Client(p, {"mode": "windows", "window_s": 2, "period_s": 3})
    client.run(0.5)
    p.do("profile", fn="_start_profile")
    client.want({"mode": "off"})
    client.run(0.3)
    p.do("profile", fn="_stop_profile")
    client.run(0.5)
    state = p.state()
    assert state["state"] == "off"
    stats = p.do("stats")
    assert stats["enabled"] == []
    assert stats["patched"] == []


def test_waits_for_a_profile_that_runs_already(start: Start) -> None:
    p = start()
    p.do("profile", fn="_start_profile")
    client = Client(p, ON)
    client.run(1.2)
    assert client.tracker.records == 0
    state = p.state()
    assert state["state"] in ("waiting", "enabling")
    assert "profiler" in state["reason"]
    assert p.do("stats")["mock"]["registered"] == 1, "CUPTI's callbacks were taken from the profiler"
    p.do("profile", fn="_stop_profile")
    p.until(lambda s: s["state"] == "tracing")


def test_records_without_timestamps_stop_tracing(start: Start) -> None:
    p = start()
    client = Client(p, ON)
    client.run(0.5)
    p.mock("mock_zero_every", 200)
    client.run(1.5)
    assert p.state()["state"] == "tracing", "half a percent is tolerated"
    assert client.tracker.untimed > 0
    p.mock("mock_zero_every", 10)
    state = p.until(lambda s: s["state"] == "failed")
    assert "without timestamps" in state["reason"]
    settled(p)
    end = time.monotonic() + 1.0  # the last buffer is back a tick before the hooks come off
    while p.do("stats")["patched"] and time.monotonic() < end:
        time.sleep(0.02)
    stats = p.do("stats")
    assert stats["enabled"] == []
    assert stats["patched"] == []
    # Asked again, it tries again.
    p.mock("mock_zero_every", 0)
    client.want({"mode": "off"})
    client.want(ON)
    p.until(lambda s: s["state"] == "tracing")
    client.turn()
    assert client.view().untimed == client.tracker.untimed


def test_launches_without_records_are_noticed(start: Start) -> None:
    p = start()
    client = Client(p, ON)
    client.run(0.3)
    for _ in range(20):
        client.want({"mode": "off"})
        p.until(lambda s: s["state"] == "off")
        before = p.state()["counters"]["completed"]
        client.want(ON)
        p.until(lambda s: s["state"] == "tracing")
        p.do("mock", fn="cuptiActivityRegisterCallbacks", args=[0, 0])  # another tool
        if p.state()["counters"]["completed"] == before:
            break  # it was there before the first buffer came back
    state = p.until(lambda s: s["state"] == "failed", timeout=20)
    assert "reported no kernel" in state["reason"]
    end = time.monotonic() + 10
    while p.do("stats")["enabled"] and time.monotonic() < end:
        time.sleep(0.02)
    assert p.do("stats")["enabled"] == []


def test_a_tool_that_takes_the_callbacks_in_the_middle_is_noticed(start: Start) -> None:
    p = start()
    client = Client(p, ON)
    p.until(lambda s: s["state"] == "tracing")
    client.run(1.5)
    assert p.state()["counters"]["completed"] > 0
    p.do("mock", fn="cuptiActivityRegisterCallbacks", args=[0, 0])  # another tool
    state = p.until(lambda s: s["state"] == "failed")
    assert "another tool holds its callbacks" in state["reason"]
    end = time.monotonic() + 10
    while p.do("stats")["enabled"] and time.monotonic() < end:
        time.sleep(0.02)
    assert p.do("stats")["enabled"] == []


def test_a_slow_reader_loses_a_fast_one_does_not(start: Start) -> None:
    p = start(ring=[16, 65536])
    fast = Client(p, ON)
    _, fd = p.ask("kernels", args=ON, client=2)
    assert fd is not None
    slow = RingReader(fd)
    os.close(fd)
    end = time.monotonic() + 4
    taken: list[Any] = []
    while time.monotonic() < end:
        fast.turn()
        time.sleep(0.02)
        if time.monotonic() > end - 0.05:
            taken += slow.poll()
    assert fast.tracker._ring is not None
    assert fast.tracker._ring.lost == 0
    assert slow.lost > 20
    assert taken
    kernels = raw_kernels(taken, "13.0")
    assert (kernels["check"] == checksum(kernels["start"], kernels["end"])).all(), "a torn record was handed out"
    c = p.state()["counters"]
    assert c["recycled"] > 20
    assert c["starved"] == c["spilled"] == 0


def test_a_killed_reader_harms_nobody(start: Start) -> None:
    p = start()
    client = Client(p, ON)
    _, fd = p.ask("kernels", args=ON, client=2)
    assert fd is not None
    code = textwrap.dedent("""
        import sys, time
        from sgtop_core.kernels.ring import RingReader
        reader = RingReader(int(sys.argv[1]))
        print("ready", flush=True)
        while True:
            reader.poll()
    """)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen([sys.executable, "-c", code, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, env=env)
    os.close(fd)
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"
    client.run(0.5)
    before = client.tracker.records
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    client.run(1.0)
    assert client.tracker.records > before + 5_000
    assert client.tracker._ring is not None
    assert client.tracker._ring.lost == 0


def test_overflow_of_the_ring_never_starves_cupti(start: Start) -> None:
    p = start(ring=[4, 4096], kernels=400)
    client = Client(p, ON)
    client.run(1.5)
    c = p.state()["counters"]
    stats = p.do("stats")
    assert c["recycled"] > 100
    assert stats["mock"]["forbidden"] == stats["mock"]["dirty"] == 0
    assert client.tracker._ring is not None
    assert client.tracker._ring.lost > 0
    assert client.view().lost_buffers == client.tracker._ring.lost
    client.want({"mode": "off"})
    settled(p)


REFUSALS = [
    ({"cuda": False}, "CUDA is not initialised"),
    ({"environ": {"CUDA_INJECTION64_PATH": "/opt/tool.so"}}, "/opt/tool.so"),
    ({"environ": {"NSYS_PROFILING_SESSION_ID": "7"}}, "Nsight Systems"),
    ({"mapped": ["/opt/nsys/libToolsInjection64.so"]}, "libToolsInjection64.so"),
    ({"mapped": ["/opt/libparcagpucupti.so"]}, "libparcagpu"),
    ({"mapped": ["/other/libcupti.so.12"]}, "several copies"),
    ({"layout": (23, 208, 88, 88)}, "before CUDA 12.6"),
    ({"layout": (130001, 64, 96, 88)}, "unknown layout"),
]


@pytest.mark.parametrize(("options", "says"), REFUSALS)
def test_refusals_are_explained_and_touch_nothing(start: Start, options: dict[str, Any], says: str) -> None:
    p = start(**options)
    state = p.do("kernels", args=ON)
    assert state["state"] == "failed"
    assert says in state["reason"]
    time.sleep(0.3)
    stats = p.do("stats")
    assert stats["enabled"] == []
    assert stats["mock"]["registered"] == 0
    assert "sgtop-flush" not in stats["threads"]
    assert stats["patched"] == []
    if "layout" not in options:
        assert stats["mock"]["calls"] == 0, "CUPTI was called where it must not be touched"


def test_old_cupti_is_used_where_no_graphs_are(start: Start) -> None:
    p = start(layout=(23, 208, 88, 88), no_graphs=True)
    Client(p, ON)
    p.until(lambda s: s["state"] == "tracing")


def test_no_helper(start: Start, tmp_path: Path) -> None:
    shutil.copytree(
        AGENT / "sgtop_agent", tmp_path / "sgtop_agent", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    p = start(agent=tmp_path)
    state = p.do("kernels", args=ON)
    assert state["state"] == "failed"
    assert "sgring.so" in state["reason"]
    assert p.do("stats")["mock"]["registered"] == 0


def test_helper_that_does_not_load(start: Start, tmp_path: Path) -> None:
    shutil.copytree(AGENT / "sgtop_agent", tmp_path / "sgtop_agent", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "sgtop_agent" / "kernels" / "sgring.so").write_bytes(b"not a library")
    p = start(agent=tmp_path)
    state = p.do("kernels", args=ON)
    assert state["state"] == "failed"
    assert "does not load" in state["reason"]


def test_cupti_refuses(start: Start) -> None:
    p = start()
    p.mock("mock_enable_error", 39)
    Client(p, ON)
    state = p.until(lambda s: s["state"] == "failed")
    assert "MULTIPLE_SUBSCRIBERS" in state["reason"]
    stats = p.do("stats")
    assert stats["enabled"] == []
    assert p.mock("mock_zeroed_attribute") == 0


@pytest.mark.parametrize(("stepping", "hooks_are_gone"), [(True, False), (False, False), (True, True)])
def test_leaving_is_quick_and_leaves_one_library_and_one_ring(
    start: Start, stepping: bool, hooks_are_gone: bool
) -> None:
    p = start()
    seen = []
    for _ in range(30):
        p.do("kernels", args=ON)
        p.until(lambda s: s["state"] == "tracing")
        if not stepping:
            p.do("options", set={"stepping": False})  # no step boundary comes any more
            time.sleep(0.05)
        took = p.do("close", again=True, hooks_are_gone=hooks_are_gone)["took"]
        assert took < 1.0
        p.do("options", set={"stepping": True})
        stats = p.do("stats")
        assert stats["enabled"] == []
        assert stats["patched"] == []
        assert "sgtop-flush" not in stats["threads"]
        assert p.mock("mock_zeroed_attribute") == 0
        seen.append((stats["fds"], len(stats["maps"])))
    assert len(set(seen[1:])) == 1, f"something grows: {seen}"
    assert p.do("stats")["mock"]["forbidden"] == 0


def test_the_strongest_wish_holds(start: Start) -> None:
    p = start()
    assert p.do("kernels", args={"mode": "windows", "period_s": 30}, client=1)["mode"] == "windows"
    assert p.do("kernels", args=ON, client=2)["mode"] == "on"
    p.until(lambda s: s["state"] == "tracing")
    p.do("gone", client=2)
    assert p.state()["mode"] == "windows"
    p.do("gone", client=1)
    p.until(lambda s: s["state"] == "off")
    assert p.do("stats")["enabled"] == []


@pytest.mark.parametrize(
    "args",
    [{}, {"mode": "graph"}, {"mode": "windows", "window_s": 5, "period_s": 5}, {"mode": "on", "window_s": "x"},
     {"mode": "windows", "window_s": -1}, {"mode": "windows", "window_s": 1, "period_s": 1e9}, {"mode": None}],
)  # fmt: skip
def test_arguments_that_make_no_sense(start: Start, args: dict[str, Any]) -> None:
    p = start()
    reply = p.do("kernels", args=args)
    assert reply["error"].startswith("kernels: ")
    assert p.state()["state"] == "off"


def test_names_of_addresses_that_are_not_there(start: Start) -> None:
    p = start()
    Client(p, ON)
    bad = [0, 1, 0x1234, 1 << 62, (1 << 64) - 8, -5]
    names = p.do("names", pointers=bad)
    assert set(names.values()) == {None}
    assert p.do("names", pointers=["x", None, 1.5, True]) == {}
    assert len(p.do("names", pointers=list(range(4096, 4096 + 5000)))) == 512


def test_the_main_thread_is_not_held_up(start: Start) -> None:
    p = start()
    for _ in range(10):
        p.do("kernels", args=ON)
        p.until(lambda s: s["state"] == "tracing")
        p.do("kernels", args={"mode": "off"})
        p.until(lambda s: s["state"] == "off")
    assert p.do("stats")["pause_max"] < 200_000_000
