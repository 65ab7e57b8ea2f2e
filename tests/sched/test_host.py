"""Topology, processes, names, recordings of perf, tracefs formats."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sgtop_probes.sched import capture, perf, tracefs
from sgtop_probes.sched.counters import ThreadReader, stat
from sgtop_probes.sched.names import Names, process_of
from sgtop_probes.sched.open_best import open_best
from sgtop_probes.sched.procs import Processes
from sgtop_probes.sched.rings import LOCKED_PAGES, MAX_PAGES, MIN_PAGES, pages_for, pages_for_threads
from sgtop_probes.sched.side import online_cpus, parse_cpus
from sgtop_probes.sched.suspects import Suspects
from sgtop_probes.sched.topology import Topology, allowed_cpus, cpu_list, read_topology
from sgtop_probes.sched.types import Suspect, Watched

from . import rig


def two_sockets(root: Path) -> Topology:
    files = {
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/cpu/isolated": "6-7\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/node/node0/cpulist": "0-3\n",
        "sys/devices/system/node/node1/cpulist": "4-7\n",
        "sys/devices/system/node/node0/distance": "10 21\n",
        "sys/devices/system/node/node1/distance": "21 10\n",
        "sys/devices/system/cpu/cpu4/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu4/cpufreq/scaling_cur_freq": "1200000\n",
        "sys/devices/system/cpu/cpu4/cpufreq/cpuinfo_max_freq": "3800000\n",
        "sys/bus/pci/devices/0000:9b:00.0/numa_node": "1\n",
        "sys/bus/pci/devices/0000:9b:00.0/local_cpulist": "4-7\n",
        "sys/bus/pci/devices/0000:17:00.0/numa_node": "-1\n",
        **{f"sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list": f"{c % 4},{c % 4 + 4}\n" for c in range(8)},
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return read_topology(str(root))


def test_two_sockets(tmp_path: Path) -> None:
    t = two_sockets(tmp_path)
    assert t.nodes == (0, 1)
    assert t.cpus_of(1) == (4, 5, 6, 7)
    assert t.nodes_of([0, 5]) == (0, 1)
    assert t.siblings[5] == (1, 5)
    assert t.isolated == (6, 7)
    assert t.distance[0] == {0: 10, 1: 21}
    assert t.frequency(4).governor == "powersave"
    assert t.frequency(4).current_mhz == 1200
    assert t.frequency(0).current_mhz is None
    assert t.gpu_node("00000000:9B:00.0") == 1
    assert t.gpu_cpus("00000000:9B:00.0") == (4, 5, 6, 7)
    assert t.gpu_node("00000000:17:00.0") is None, "the firmware does not say"
    assert t.gpu_node("00000000:AA:00.0") is None
    assert t.gpu_cpus("0:AA:00.0") == ()


def test_this_host() -> None:
    t = read_topology()
    assert set(t.online) >= os.sched_getaffinity(0)
    assert set(online_cpus()) == set(t.online)
    assert allowed_cpus(os.getpid()) == os.sched_getaffinity(0)
    assert allowed_cpus(2**22 - 3) is None


def test_an_empty_sysfs(tmp_path: Path) -> None:
    t = read_topology(str(tmp_path))
    assert t == Topology((), {}, {}, root=str(tmp_path))


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_go_there_and_back(cpus: set[int]) -> None:
    assert set(parse_cpus(cpu_list(cpus))) == cpus


def test_ring_sizes_are_powers_of_two_within_bounds() -> None:
    for n in (1, 2, 16, 64, 192, 512, 4096):
        for may_lock in (True, False):
            pages = pages_for(n, may_lock)
            assert MIN_PAGES <= pages <= (MAX_PAGES if may_lock else LOCKED_PAGES)
            assert pages & (pages - 1) == 0
    assert pages_for(2, True) == MAX_PAGES
    assert pages_for(2, False) == LOCKED_PAGES
    assert pages_for(2) in (MAX_PAGES, LOCKED_PAGES)
    assert pages_for_threads(1, 2) == 128
    assert pages_for_threads(8, 2) == 16
    assert pages_for_threads(2000, 2) == MIN_PAGES
    assert pages_for_threads(0, 2) == 128


def test_cpu_of_processes_and_their_busiest_threads(cpu: str) -> None:
    clock = itertools.chain([0.0, 0.5], itertools.count(2.0, 2.0))
    with rig.running(rig.BUSY, "busy", cpu) as busy:
        p = Processes(
            {busy.pid: "detokenizer", os.getpid(): "tokenizer", 2**22 - 3: "gone"}, top=2, clock=lambda: next(clock)
        )
        first = p.read()
        assert [(u.role, u.cpu_share) for u in first] == [("detokenizer", None), ("tokenizer", None)]
        assert p.read() is first, "too soon for the kernel's ticks"
        end = time.monotonic() + 20
        second = p.read()[0]
        while not second.top and time.monotonic() < end:  # the kernel counts in ticks of 10 ms
            time.sleep(0.3)
            second = p.read()[0]
    assert second.cpu_share
    assert second.threads == 1
    assert second.rss_bytes
    assert (second.top[0].tid, second.top[0].comm) == (busy.pid, "busy")


def test_a_process_that_ends_is_left_out(cpu: str) -> None:
    with rig.running(rig.BUSY, "busy", cpu) as busy:
        p = Processes({busy.pid: "detokenizer"})
        assert len(p.read()) == 1
        p.watch({busy.pid: "x", os.getpid(): "y"})
        busy.stop()
        assert [u.role for u in p.read()] == ["y"]


def test_counters_of_a_thread(cpu: str) -> None:
    with rig.running(rig.BUSY, "odd) name", cpu) as busy:
        got = ThreadReader(busy.pid, busy.pid).read(1)
        assert got is not None
        assert got.cpu == int(cpu)
        assert got.migrations is not None
        st = stat(busy.pid, busy.pid)
        assert st is not None
        assert st[0] == "odd) name"
    assert ThreadReader(busy.pid, busy.pid).read(1) is None


def test_moves_are_counted_where_the_kernel_does_not_say(tmp_path: Path) -> None:
    task = tmp_path / "5" / "task" / "5"
    task.mkdir(parents=True)
    reader = ThreadReader(5, 5, str(tmp_path))
    seen = []
    for now, on in ((0, 3), (2 * 10**9, 3), (4 * 10**9, 1)):
        (task / "stat").write_text("5 (x) S " + " ".join(["0"] * 35) + f" {on} 0\n")
        got = reader.read(now)
        assert got is not None
        assert got.wait_ns is None
        seen.append((got.cpu, got.migrations))
    assert seen == [(3, 0), (3, 0), (1, 1)]


def test_names_forget_and_follow_hints() -> None:
    now = [0.0]
    names = Names(clock=lambda: now[0])
    me = os.getpid()
    assert names.resolve(0) == (0, "idle")
    assert names.resolve(-1) == (-1, "?")
    assert names.resolve(me, b"pytest\0\0") == (me, "pytest")
    assert process_of(me) == me
    gone = 2**22 - 3
    assert names.resolve(gone, b"short-lived\0") == (gone, "short-lived")
    names.hint(gone, me)
    assert names.resolve(gone, b"short-lived\0")[0] == me
    inside = Names(translate=True)
    assert inside.resolve(18097, b"hog") == (18097, "hog")
    assert inside.untranslated


# --- tracefs ----------------------------------------------------------------------------------------

FORMAT = """name: sched_switch
ID: 316
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_preempt_lazy_count;\toffset:8;\tsize:1;\tsigned:0;

\tfield:char prev_comm[16];\toffset:12;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:28;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:40;\tsize:8;\tsigned:1;
\tfield:char next_comm[16];\toffset:48;\tsize:16;\tsigned:0;
\tfield:pid_t next_pid;\toffset:64;\tsize:4;\tsigned:1;
"""


def test_a_real_time_kernels_layout() -> None:
    event = tracefs.parse_format(FORMAT)
    assert event.id == 316
    layout = tracefs.SwitchLayout(event, tracefs.parse_format("ID: 9\n\tfield:pid_t pid;\toffset:24;\tsize:4;\n"))
    raw = b"\0" * 12 + b"prev".ljust(16, b"\0") + (7).to_bytes(4, "little") + b"\0" * 8
    raw += (256).to_bytes(8, "little") + b"next".ljust(16, b"\0") + (8).to_bytes(4, "little")
    prev_comm, prev, state, next_comm, nxt = layout.prev.unpack_from(raw, 0)
    assert (prev_comm[:4], prev, state, next_comm[:4], nxt) == (b"prev", 7, 256, b"next", 8)
    assert layout.switch_raw == 68


def test_an_unknown_layout_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="format"):
        tracefs.parse_format("nothing")
    odd = tracefs.parse_format(FORMAT.replace("offset:64", "offset:2"))
    with pytest.raises(tracefs.TracefsError, match="layout"):
        tracefs.SwitchLayout(odd, odd)


# --- perf recordings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("os_release", "says"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "linux-perf"),
        ("ID=ubuntu\nID_LIKE=debian\n", "linux-tools-common"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install perf"),
        ('ID=pop\nID_LIKE="ubuntu debian"\n', "linux-tools-common"),
        ("ID=strange\n", "your distribution's perf"),
        ("", "your distribution's perf"),
    ],
)
def test_how_to_get_perf(os_release: str, says: str) -> None:
    assert says in capture.install_hint(os_release)


def test_no_perf_binary() -> None:
    with pytest.raises(capture.CaptureError, match="no perf binary") as e:
        capture.find_perf({"PATH": "/nonexistent"})
    assert e.value.mend


@pytest.mark.usefixtures("level_a", "perf_binary")
def test_a_recording_holds_the_switches_of_its_time(tmp_path: Path, cpu: str) -> None:
    path = str(tmp_path / "sched.data")
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.running(rig.BUSY, "hog", cpu):
        got = capture.record(path, 0.8)
    assert got.bytes == os.path.getsize(path) > 10_000
    assert "perf version" in got.perf_version
    said = subprocess.run(
        ["perf", "sched", "timehist", "-i", path, "--tid", str(victim.pid)], capture_output=True, text=True, check=True
    ).stdout
    times = [float(x.split()[0]) for x in said.splitlines() if f"[{victim.pid}]" in x and x.split()[0][0].isdigit()]
    assert len(times) > 20
    assert got.start_ns / 1e9 <= times[0] <= times[-1] <= got.end_ns / 1e9
    with pytest.raises(capture.CaptureError, match="exists"):
        capture.record(path, 0.1)


def test_a_failing_perf_says_its_own_words(tmp_path: Path) -> None:
    fake = tmp_path / "perf"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo perf version 9; exit 0; }\necho "Permission denied" >&2; exit 1\n'
    )
    fake.chmod(0o755)
    with pytest.raises(capture.CaptureError, match="Permission denied") as e:
        capture.record(str(tmp_path / "o"), 0.1, perf_binary=str(fake))
    assert "perf_event_paranoid" in e.value.mend
    fake.write_text('#!/bin/sh\necho "WARNING: perf not found for kernel 6.5"; exit 2\n')
    with pytest.raises(capture.CaptureError, match="not found for kernel") as e:
        capture.record(str(tmp_path / "o"), 0.1, perf_binary=str(fake))
    assert "linux-tools" in e.value.mend


# --- the choice -------------------------------------------------------------------------------------


def test_a_level_can_be_asked_for() -> None:
    me = [Watched(os.getpid(), os.getpid())]
    source = open_best(me, best="D")
    assert source.level == "D"
    assert source.needs is None, "nothing better was asked for"
    source.close()
    with pytest.raises(ValueError, match="level"):
        open_best(me, best="Z")


def test_a_machine_without_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "_NR", {})
    source = open_best([Watched(os.getpid(), os.getpid())])
    assert source.level == "D"
    assert source.needs is not None
    assert source.needs.level == "C"
    assert "not known" in source.needs.missing
    source.close()


def test_looking_for_suspects_is_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scans at once when waits begin, however dear; then a third of a percent of a core."""
    spent = [0.0]
    scans: list[float] = []
    now = [0.0]

    def scan(self: Suspects, at: int, cpus: set[int], own: set[int]) -> tuple[Suspect, ...]:
        spent[0] += 0.06
        scans.append(now[0])
        self._at = at
        return (Suspect(7, 7, "hog", 1, 0.5),)

    monkeypatch.setattr(Suspects, "_scan", scan)
    monkeypatch.setattr("sgtop_probes.sched.suspects.time.thread_time", lambda: spent[0])
    s = Suspects()
    for tick in range(600):
        now[0] = 1.0 + tick * 0.2
        found = s.update(int(now[0] * 1e9), {1} if tick < 500 else (), ())
    assert scans[1] - scans[0] <= 1.3
    assert 0.002 < spent[0] / 100 < 0.005
    assert found == (), "nobody waits any more"
