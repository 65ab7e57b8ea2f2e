"""Quotas and throttling: version 1 and 2, hosts and containers, and a real quota where one can be set here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sgtop_probes.sched import psi
from sgtop_probes.sched.cgroup import ThrottleReader, memberships, mounts
from sgtop_probes.sched.level_d import LevelD
from sgtop_probes.sched.open_best import open_best
from sgtop_probes.sched.types import Watched

from . import rig


def tree(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        full = root / path.lstrip("/")
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text)


def proc(root: Path, cgroup: str, mountinfo: str) -> str:
    tree(root, {"proc/77/cgroup": cgroup, "proc/self/mountinfo": mountinfo})
    return str(root / "proc")


def mount(point: Path | str, version: int, fs_root: str = "/") -> str:
    kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,cpu,cpuacct"
    return f"30 23 0:26 {fs_root} {point} rw,nosuid - {kind}\n"


V2_STAT = "usage_usec 100\nnr_periods {p}\nnr_throttled {n}\nthrottled_usec {u}\n"


def test_version_2_sums_the_levels_and_shows_the_tightest(tmp_path: Path) -> None:
    fs = tmp_path / "cg"
    tree(
        fs,
        {
            "cpu.stat": "usage_usec 1\n",
            "kubepods/cpu.max": "600000 100000",
            "kubepods/cpu.stat": V2_STAT.format(p=10, n=1, u=50),
            "kubepods/pod7/cpu.max": "150000 100000",
            "kubepods/pod7/cpu.stat": V2_STAT.format(p=20, n=5, u=7000),
            "kubepods/pod7/inner/cpu.max": "max 100000",
            "kubepods/pod7/inner/cpu.stat": V2_STAT.format(p=0, n=0, u=0),
        },
    )
    got = ThrottleReader(77, proc(tmp_path, "0::/kubepods/pod7/inner\n", mount(fs, 2))).read()
    assert got is not None
    assert (got.version, got.quota_cpus, got.period_us) == (2, 1.5, 100000)
    assert got.path.endswith("kubepods/pod7")
    assert (got.nr_throttled, got.throttled_ns, got.nr_periods) == (6, 7_050_000, 30)


def test_version_2_in_a_cgroup_namespace(tmp_path: Path) -> None:
    """In a container its own cgroup is the root, and has a quota."""
    fs = tmp_path / "cg"
    tree(fs, {"cpu.max": "50000 100000", "cpu.stat": V2_STAT.format(p=9, n=3, u=11)})
    got = ThrottleReader(77, proc(tmp_path, "0::/\n", mount(fs, 2))).read()
    assert got is not None
    assert (got.quota_cpus, got.nr_throttled, got.throttled_ns) == (0.5, 3, 11000)


def test_version_2_of_a_process_outside_the_namespace(tmp_path: Path) -> None:
    """The top that can be seen stands in: it binds the process too, or is without a quota."""
    fs = tmp_path / "cg"
    tree(fs, {"cpu.stat": V2_STAT.format(p=0, n=0, u=0)})
    got = ThrottleReader(77, proc(tmp_path, "0::/../other\n", mount(fs, 2))).read()
    assert got is not None
    assert got.quota_cpus is None


def test_version_1_in_docker(tmp_path: Path) -> None:
    """The container's mount shows its own part only, and the paths say where that part hangs on the host."""
    fs = tmp_path / "cpu"
    stat = "nr_periods 4\nnr_throttled 2\nthrottled_time 12345\n"
    tree(fs, {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000", "cpu.stat": stat})
    cgroup = "5:cpuacct,cpu:/docker/abc\n1:name=systemd:/docker/abc\n"
    got = ThrottleReader(77, proc(tmp_path, cgroup, mount(fs, 1, "/docker/abc"))).read()
    assert got is not None
    assert (got.version, got.quota_cpus, got.nr_throttled, got.throttled_ns) == (1, 2.0, 2, 12345)


def test_no_quota_and_no_cgroup(tmp_path: Path) -> None:
    fs = tmp_path / "cpu"
    tree(fs, {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "cpu.stat": "nr_periods 0\nnr_throttled 0\n"})
    got = ThrottleReader(77, proc(tmp_path, "5:cpu:/\n", mount(fs, 1))).read()
    assert got is not None
    assert got.quota_cpus is None
    assert ThrottleReader(77, proc(tmp_path / "x", "0::/\n", "")).read() is None
    assert ThrottleReader(78, str(tmp_path / "proc")).read() is None


def test_a_hybrid_host_has_no_cpu_controller_in_version_2(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "cpu", tmp_path / "unified"
    tree(
        v1,
        {
            "a/cpu.cfs_quota_us": "50000",
            "a/cpu.cfs_period_us": "100000",
            "a/cpu.stat": "nr_periods 1\nnr_throttled 1\n",
        },
    )
    tree(v2, {"cpu.stat": "usage_usec 5\n"})
    got = ThrottleReader(77, proc(tmp_path, "5:cpu:/a\n0::/\n", mount(v1, 1) + mount(v2, 2))).read()
    assert got is not None
    assert (got.version, got.quota_cpus) == (1, 0.5)


def test_odd_lines_are_passed_over() -> None:
    assert mounts("garbage\n\n30 23 0:26 / /a\\040b rw - cgroup2 x rw\n")[0].point == "/a b"
    assert memberships("7:memory:/x\nnonsense\n0::/y:z\n") == {2: "/y:z"}


def test_pressure() -> None:
    got = psi.parse(
        "some avg10=4.58 avg60=1.60 avg300=0.54 total=5749736\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )
    assert got == psi.Pressure(0.0458, 0.016, 5749736)
    assert psi.parse("") is None
    assert psi.parse("some avg10=x\n") is None


def test_pressure_of_this_host() -> None:
    if not os.path.exists("/proc/pressure/cpu"):
        pytest.skip("this kernel has no pressure files (psi=0)")
    got = psi.host_cpu()
    assert got is not None
    assert 0 <= got.avg10 <= 1


def test_a_process_that_moves_and_a_quota_that_comes(tmp_path: Path) -> None:
    fs = tmp_path / "cg"
    stat = V2_STAT.format(p=9, n=3, u=11)
    tree(fs, {"a/cpu.max": "max 100000", "a/cpu.stat": stat, "b/cpu.max": "50000 100000", "b/cpu.stat": stat})
    reader = ThrottleReader(77, proc(tmp_path, "0::/a\n", mount(fs, 2)))
    got = reader.read()
    assert got is not None
    assert got.quota_cpus is None
    (fs / "a/cpu.max").write_text("300000 100000")
    got = reader.read()
    assert got is not None
    assert got.quota_cpus == 3.0
    (tmp_path / "proc/77/cgroup").write_text("0::/b\n")
    seen = [r.quota_cpus for r in (reader.read() for _ in range(6)) if r is not None]
    assert seen[-1] == 0.5


def test_a_real_quota_throttles(cpu: str) -> None:
    """So small a quota that it bites on a busy host too."""
    with rig.running(rig.BUSY, "victim", cpu) as victim, rig.quota(victim.pid, 0.04):
        for source in (LevelD([Watched(victim.pid, victim.pid)]), open_best([Watched(victim.pid, victim.pid)])):
            first = source.poll().throttle[victim.pid]
            batches = rig.collect(source, 2.5)
            last = [b for b in batches if b.throttle][-1].throttle[victim.pid]
            level = source.level
            source.close()
            assert first.quota_cpus == pytest.approx(0.04)
            assert last.nr_throttled - first.nr_throttled >= 5, level
            assert last.throttled_ns - first.throttled_ns > 500_000_000, level
            wait = sum(sum(b.wait) for b in batches)
            assert wait > 500_000_000, level


def test_a_quota_that_comes_while_the_process_is_watched(cpu: str) -> None:
    with rig.running(rig.BUSY, "victim", cpu) as victim:
        source = open_best([Watched(victim.pid, victim.pid)])
        before = rig.collect(source, 0.3)
        assert before[0].throttle == {} or before[0].throttle[victim.pid].quota_cpus is None
        with rig.quota(victim.pid, 0.04):
            batches = rig.collect(source, 3.0)
        source.close()
    seen = [b.throttle[victim.pid] for b in batches if b.throttle]
    assert seen[-1].quota_cpus == pytest.approx(0.04)
    assert seen[-1].nr_throttled > 0
