"""Findings about CPU time: the sentence, its evidence, a command that fits this host, and when nothing is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sgtop_core.contention import advice
from sgtop_core.contention.place import place
from sgtop_core.contention.rules import CONTENTION_RULES
from sgtop_core.findings.base import Facts, Verdict
from sgtop_core.findings.engine import Engine
from sgtop_core.findings.rules import RULES
from sgtop_core.model.kernel_view import KernelView
from sgtop_core.model.snapshot import Cpu, Culprit, Gpu, Place
from sgtop_probes.sched.topology import Frequency, Topology
from sgtop_probes.sched.types import Throttle

from .batches import busy_rank, facts

BY_ID = {r.id: r for r in CONTENTION_RULES}
HERE = Place(host_cpus=tuple(range(16)), allowed_cpus=tuple(range(16)), cpu=4, siblings=(4, 12))
DOCKERD = Culprit(812, "dockerd", 23, 90.0)


def cpu(*culprits: Culprit, place: Place | None = HERE, **more: Any) -> Cpu:
    wait = sum(c.ms for c in culprits)
    base = Cpu("A", "", wait, sum(c.count for c in culprits), 26.7, culprits, 0.0, 0, None, 0, place)
    return replace(base, **more)


def check(rule: str, f: Facts) -> list[Verdict]:
    return list(BY_ID[rule].check(f))


def test_the_flagship() -> None:
    (v,) = check("preempted", facts(busy_rank(cpu(DOCKERD), preempted_ms=41.0, label="gpu")))
    assert v.rank == "TP0"
    assert v.severity == "warning"
    assert v.title == "TP0 preempted 23× by dockerd (pid 812), 41.0 ms between forwards in 5 s"
    assert "waited 90.0 ms of 5 s for CPU 4" in v.evidence
    assert "longest 26.7 ms" in v.evidence
    assert "level A" in v.evidence
    assert v.next == "taskset -acp 0-3,5-11,13-15 812", "neither the rank's CPU nor its hyper-thread"


def test_crumbs_are_not_named_one_by_one() -> None:
    crumbs = (Culprit(11, "kworker/0:1", 8, 0.2), Culprit(18, "migration/0", 0, 0.0))
    (v,) = check("preempted", facts(busy_rank(cpu(replace(DOCKERD, ms=2236.0), Culprit(7, "cron", 3, 30.0), *crumbs))))
    assert "dockerd (812) 23× 2,236 ms, cron (7) 3× 30.0 ms, 2 others 0.2 ms; level A" in v.evidence
    (v,) = check("preempted", facts(busy_rank(cpu(replace(DOCKERD, ms=2236.0), crumbs[1]))))
    assert v.evidence.endswith("dockerd (812) 23× 2,236 ms; level A"), "nobody took 0.0 ms"
    (v,) = check("preempted", facts(busy_rank(cpu(*[Culprit(i, "x", 1, 0.5) for i in range(200)]))))
    assert v.evidence.endswith("x (0) 1× 0.5 ms, 199 others 99.5 ms; level A"), "somebody is named in any case"


def test_only_kernel_tracing_may_say_gpu_idle() -> None:
    r = busy_rank(cpu(DOCKERD), preempted_ms=41.0)
    with_kernels = replace(r, kernel_gaps=r.gaps, tracing=KernelView("windows", "waiting", "", traced_s=1.0))
    said = check("preempted", facts(with_kernels))[0].title
    assert "41.0 ms of GPU idle in 1.0 s traced" in said, "what was not traced is not claimed"
    on_a_cpu = busy_rank(cpu(DOCKERD), preempted_ms=41.0, label="host")
    assert "41.0 ms between forwards (host)" in check("preempted", facts(on_a_cpu))[0].title


def test_severity_grows_with_the_share() -> None:
    big = replace(DOCKERD, ms=900.0)
    assert check("preempted", facts(busy_rank(cpu(big))))[0].severity == "critical"


@pytest.mark.parametrize(
    "quiet",
    [
        cpu(replace(DOCKERD, ms=60.0)),  # 1.2 % of the time
        cpu(replace(DOCKERD, kind="sgtop")),
        cpu(replace(DOCKERD, kind="server")),
        cpu(),
        None,
    ],
)
def test_nothing_is_said_of(quiet: Cpu | None) -> None:
    assert check("preempted", facts(busy_rank(quiet))) == []


def test_an_idle_server_that_spins_is_not_delayed_by_anybody() -> None:
    f = facts(busy_rank(cpu(replace(DOCKERD, ms=2000.0), throttled_ms=900.0), steps=0))
    assert [v for r in CONTENTION_RULES for v in r.check(f)] == []


def test_it_stays_until_well_below_what_raised_it() -> None:
    weak = busy_rank(cpu(replace(DOCKERD, ms=40.0)))
    assert check("preempted", facts(weak)) == []
    assert len(check("preempted", facts(weak, held=["TP0"]))) == 1
    gone = busy_rank(cpu(replace(DOCKERD, ms=20.0)))
    assert check("preempted", facts(gone, held=["TP0"])) == []


def test_the_servers_own_processes_are_a_note_below_a_share() -> None:
    own = Culprit(900, "sglang::detoken", 50, 200.0, "server")
    (v,) = check("preempted-by-server", facts(busy_rank(cpu(own))))
    assert v.severity == "info"
    assert "taskset -cp" in v.next
    assert "4242" in v.next
    (v,) = check("preempted-by-server", facts(busy_rank(cpu(replace(own, ms=700.0)))))
    assert v.severity == "warning"
    assert check("preempted-by-server", facts(busy_rank(cpu(replace(own, ms=100.0))))) == []


def test_the_schedulers_other_threads_are_not_named_like_a_stranger() -> None:
    own = Culprit(4242, "sglang::schedul", 900, 400.0, "server")
    (v,) = check("preempted-by-server", facts(busy_rank(cpu(own))))
    assert "by its own threads (pid 4242)" in v.title
    assert "its own threads (4242) 900×" in v.evidence


def test_another_sgtop_is_called_what_it_is() -> None:
    """Its own cost is in the header; that of another client is nowhere else, and is not to be hidden."""
    other = Culprit(25143, "python3", 65, 300.0, "another-sgtop")
    (v,) = check("preempted", facts(busy_rank(cpu(other, replace(DOCKERD, ms=10.0)))))
    assert "TP0 preempted 65× by another sgtop (pid 25143)" in v.title
    assert "another sgtop (25143) 65× 300 ms, dockerd (812)" in v.evidence
    assert v.next == "taskset -acp 0-3,5-11,13-15 25143   # or end that sgtop", "no kill: `sgtop run` takes its server"
    assert check("preempted-by-server", facts(busy_rank(cpu(other)))) == []


@pytest.mark.parametrize(
    ("place", "how"),
    [(HERE, "taskset -c 0-3,5-11,13-15"), (replace(HERE, host_cpus=(4, 12)), "chrt --idle 0"), (None, "chrt --idle 0")],
)
def test_no_command_for_a_process_that_has_ended(place: Place | None, how: str) -> None:
    for kind in ("other", "another-sgtop"):
        (v,) = check("preempted", facts(busy_rank(cpu(replace(DOCKERD, kind=kind, ended=True), place=place))))
        assert "(pid 812, ended)" in v.title
        assert "(812, ended) 23×" in v.evidence
        assert v.next == f"it has ended; if it comes back, start it with {how} COMMAND"


def test_the_command_is_for_one_that_is_still_there() -> None:
    gone, cron = replace(DOCKERD, ended=True), Culprit(7, "cron", 3, 80.0)
    (v,) = check("preempted", facts(busy_rank(cpu(gone, cron))))
    assert v.title.startswith("TP0 preempted 23× by dockerd (pid 812, ended)")
    assert v.next == "taskset -acp 0-3,5-11,13-15 7"
    (v,) = check("preempted", facts(busy_rank(cpu(gone, replace(cron, ms=9.0)))))
    assert v.next.startswith("it has ended"), "crumbs are not worth a command"


def test_a_likely_culprit_is_called_likely() -> None:
    (v,) = check("preempted", facts(busy_rank(cpu(replace(DOCKERD, certain=False), level="D", longest_ms=None))))
    assert "by probably dockerd" in v.title
    assert "longest" not in v.evidence


def test_every_rank_keeps_its_own_cpu() -> None:
    other = replace(busy_rank(cpu(place=replace(HERE, cpu=6, siblings=(6, 14)))), rank="TP1")
    (v,) = check("preempted", facts(busy_rank(cpu(DOCKERD)), other))
    assert v.next == "taskset -acp 0-3,5,7-11,13,15 812"


def test_a_kernel_thread_cannot_be_moved() -> None:
    k = Culprit(41, "kworker/4:1", 300, 90.0, "kernel")
    (v,) = check("preempted", facts(busy_rank(cpu(k))))
    assert "pin the rank away" in v.next
    assert "taskset -cp 0-3,5-11,13-15 4242" in v.next


def test_a_host_with_no_cpu_to_spare() -> None:
    full = replace(HERE, host_cpus=(4, 12), sudo=True)
    (v,) = check("preempted", facts(busy_rank(cpu(DOCKERD, place=full))))
    assert v.next.startswith("sudo chrt --idle -a -p 0 812")


def test_far_cpus_go_to_the_culprit_near_ones_to_the_rank() -> None:
    numa = replace(HERE, near_cpus=(0, 1, 2, 3, 4, 5, 6, 7))
    assert advice.move_culprit(DOCKERD, numa, ()) == "taskset -acp 8-11,13-15 812"
    assert advice.pin_rank(1, numa, [replace(HERE, cpu=0, siblings=(0,))]) == "taskset -cp 1-7 1"
    assert advice.pin_rank(1, replace(HERE, host_cpus=(4,)), ()) == "renice -n -10 -p 1"
    assert advice.move_culprit(DOCKERD, None, ()) == "sudo renice -n 19 -p 812"


# --- quotas, NUMA, threads, GPUs ----------------------------------------------------------------------


def test_throttled_says_the_quota_and_how_to_raise_it() -> None:
    p = replace(HERE, quota_cpus=2.0, quota_path="/sys/fs/cgroup/kubepods/pod7", quota_version=2, threads=256)
    (v,) = check("throttled", facts(busy_rank(cpu(place=p, throttled_ms=340.0, nr_throttled=12))))
    assert v.title == "TP0 throttled by a quota of 2 CPUs: held back 340 ms in 5 s"
    assert "rose by 12 in /sys/fs/cgroup/kubepods/pod7" in v.evidence
    assert "256 threads" in v.evidence
    assert v.next == "sh -c 'echo \"400000 100000\" > /sys/fs/cgroup/kubepods/pod7/cpu.max'   # cgroup of pid 4242"
    one = replace(p, quota_version=1, sudo=True)
    (v,) = check("throttled", facts(busy_rank(cpu(place=one, throttled_ms=340.0, nr_throttled=12))))
    assert v.next.startswith("sudo sh -c 'echo 400000 > /sys/fs/cgroup/kubepods/pod7/cpu.cfs_quota_us'")
    assert check("throttled", facts(busy_rank(cpu(throttled_ms=20.0)))) == []
    assert check("throttled", facts(busy_rank(cpu(throttled_ms=None)))) == []


def test_a_rank_far_from_its_gpu() -> None:
    p = Place(
        host_cpus=tuple(range(8)), allowed_cpus=(0, 1), cpu=0, node=0, gpu_node=1, near_cpus=(4, 5, 6, 7), sudo=True
    )
    (v,) = check("numa", facts(busy_rank(cpu(place=p, numa_ok=False))))
    assert v.title == "TP0 runs on NUMA node 0, its GPU is on node 1"
    assert "none of that node's" in v.evidence
    assert v.next.startswith("sudo taskset -acp 4-7 4242; at the next start numactl --cpunodebind=1 --membind=1")
    (v,) = check("numa", facts(busy_rank(cpu(place=p, numa_ok=False)), args={"numa_node": None}))
    assert "--numa-node 1 (memory moves too)" in v.next
    assert check("numa", facts(busy_rank(cpu(place=p, numa_ok=True)))) == []
    assert check("numa", facts(busy_rank(cpu(place=p)))) == []


OWN = Culprit(4242, "sglang::schedul", 900, 106.0, "server")
CROWDED = replace(HERE, allowed_cpus=(0,), threads=94)


def test_too_many_threads_only_where_it_hurts() -> None:
    p = replace(HERE, quota_cpus=6.0, threads=256)
    hurt = cpu(DOCKERD, place=p, throttled_ms=200.0)
    (v,) = check("too-many-threads", facts(busy_rank(hurt)))
    assert v.title == "TP0 has 256 threads for 6 CPUs"
    assert v.evidence == "its main thread waited 0.0 ms for threads of its own server and was held back 200 ms in 5 s"
    assert "OMP_NUM_THREADS=6" in v.next
    assert check("too-many-threads", facts(busy_rank(cpu(place=p)))) == [], "threads that sleep harm nobody"
    assert check("too-many-threads", facts(busy_rank(cpu(DOCKERD, place=replace(p, threads=30))))) == []


def test_its_threads_are_blamed_for_what_they_took_themselves() -> None:
    (v,) = check("too-many-threads", facts(busy_rank(cpu(OWN, place=CROWDED))))
    assert v.title == "TP0 has 94 threads for 1 CPU"
    assert "waited 106 ms for threads of its own server" in v.evidence
    helper = replace(OWN, pid=77, comm="sglang::detoken")
    assert check("too-many-threads", facts(busy_rank(cpu(helper, place=CROWDED)))), "any process of the server"


@pytest.mark.parametrize("kind", ["other", "kernel", "sgtop", "another-sgtop"])
@pytest.mark.parametrize("held", [(), ("TP0",)])
def test_threads_are_not_blamed_for_what_somebody_else_took(kind: str, held: tuple[str, ...]) -> None:
    stranger = Culprit(50, "batch-job", 70, 3811.0, kind)
    for culprits in ((stranger,), (stranger, OWN)):
        f = facts(busy_rank(cpu(*culprits, place=CROWDED)), held=held)
        assert check("too-many-threads", f) == [], "fewer threads would not help"
    nobody = cpu(place=CROWDED, wait_ms=900.0)
    assert check("too-many-threads", facts(busy_rank(nobody), held=held)) == [], "level A: nobody ran meanwhile"


@pytest.mark.parametrize("level", ["C", "D"])
def test_where_nobody_knows_who_ran_only_long_waits_count(level: str) -> None:
    def at(wait_ms: float, **more: Any) -> list[Verdict]:
        return check("too-many-threads", facts(busy_rank(cpu(place=CROWDED, level=level, wait_ms=wait_ms, **more))))

    assert at(400.0) == []
    (v,) = at(600.0)
    assert "waited 600 ms (who ran is not known)" in v.evidence
    (v,) = at(40.0, throttled_ms=200.0)
    assert "waited 40.0 ms (who ran is not known) and was held back 200 ms" in v.evidence


def test_a_gpu_that_slows_itself_down() -> None:
    g = Gpu(3, "GPU-x", "H200", ("TP0",), sm_clock_mhz=1200, sm_clock_max_mhz=1980, temperature_c=91)
    hot = replace(g, throttle_reasons=("power cap", "hardware thermal"))
    (v,) = check("gpu-slowdown", facts(busy_rank(cpu()), gpus=(hot,)))
    assert v.title == "GPU 3 slows itself down: hardware thermal"
    assert "1200 of 1980 MHz, 91 °C" in v.evidence
    assert check("gpu-slowdown", facts(gpus=(replace(g, throttle_reasons=("power cap",)),))) == []
    assert check("gpu-slowdown", facts(gpus=(replace(hot, ranks=()),))) == [], "somebody else's GPU"


# --- place, engine ------------------------------------------------------------------------------------


def test_a_place_from_the_topology(tmp_path: Any) -> None:
    dev = tmp_path / "sys/bus/pci/devices/0000:9b:00.0"
    dev.mkdir(parents=True)
    (dev / "numa_node").write_text("1\n")
    t = Topology((0, 1, 2, 3), {0: 0, 1: 0, 2: 1, 3: 1}, {2: (2, 3)}, root=str(tmp_path))
    p = place(
        t,
        {2, 0},
        cpu=2,
        gpu_bus_id="00000000:9B:00.0",
        frequency=Frequency("powersave", 800.0, 3800.0),
        threads=9,
        quota=Throttle("/x", 1, 1.5, 100_000, 0, 0, 0),
        sudo=True,
    )
    assert (p.node, p.gpu_node, p.near_cpus, p.siblings) == (1, 1, (2, 3), (2, 3))
    assert (p.allowed_cpus, p.governor, p.mhz, p.max_mhz, p.threads) == ((0, 2), "powersave", 800.0, 3800.0, 9)
    assert (p.quota_cpus, p.quota_path, p.quota_version, p.sudo) == (1.5, "/x", 1, True)
    flat = Topology((0, 1), {0: 0, 1: 0}, {}, root=str(tmp_path))
    assert place(flat, None, gpu_bus_id="00000000:9B:00.0").near_cpus == ()
    unlimited = Throttle("/x", 2, None, None, 0, 0, 0)
    assert place(flat, None, quota=unlimited).quota_path == ""


def test_the_engine_raises_latches_and_clears_them() -> None:
    assert set(CONTENTION_RULES) <= set(RULES), "they are in the list that a session uses"
    engine = Engine(CONTENTION_RULES)
    bad, good = facts(busy_rank(cpu(DOCKERD))), facts(busy_rank(cpu()))

    def at(f: Facts, second: float) -> list[tuple[str, bool]]:
        return [(a.id, a.active) for a in engine.check(replace(f, unix=second))]

    assert at(bad, 0.0) == []
    assert at(bad, 1.0) == [("preempted", True)]
    assert at(good, 2.0) == [("preempted", True)], "one quiet second does not take it down"
    assert at(bad, 3.0) == [("preempted", True)]
    assert at(good, 7.0) == [("preempted", False)]
    log = engine.drain_log()
    assert "began" in log[0]
    assert "ended" in log[1]
