"""Samples beside an agent's events: the gaps' causes, the snapshot, recordings; and the threads that read the host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sgtop_agent.wire import STAGES
from sgtop_core.contention import gpus
from sgtop_core.contention.facts import HostFacts, RankIds
from sgtop_core.contention.feed import ContentionFeed
from sgtop_core.contention.host_watch import HostWatch
from sgtop_core.model.model import Model
from sgtop_core.model.snapshot import Cpu, Place
from sgtop_core.recording.envelope import from_frame, to_frame
from sgtop_probes.gpu.types import GpuBatch, GpuReading
from sgtop_probes.sched.threads import is_kernel_thread, main_thread, runs_sgtop, thread_count
from sgtop_probes.sched.types import Needs, SchedBatch, SchedSource, Watched

from tests.sched import rig

from .batches import HELLO, MS, TID, Build, S, frame, quota

RUN_BATCH = STAGES.index("run_batch")
IDLE_STAGE = STAGES.index("idle")


class Rig:
    """A model with one rank whose gaps are 10 ms long: forwards of 10 ms every 20 ms, stage run_batch in between."""

    def __init__(self) -> None:
        self.model = Model()
        self.model.add("TP0", TID)
        self.model.hello("TP0", HELLO, S)
        self.feed = ContentionFeed(self.model)
        self.feed.facts(
            HostFacts({"TP0": RankIds(TID, TID)}, server_pids=(TID,), kernel_pids=(13,), needs="a better one")
        )
        self.ct = 0

    def second(self, at: int, stage: int = RUN_BATCH) -> None:
        """Events of one second from ``at``."""
        t = range(at, at + S, 20 * MS)
        rows = [
            {"ct": self.ct + i, "runner": 0, "mode": 2, "t0": x, "t1": x + 10 * MS, "graph": -1}
            for i, x in enumerate(t)
        ]
        steps = [{**r, "bs": 1, "tokens": 1} for r in rows]
        self.ct += len(rows)
        stages = [{"stage": stage, "t0": x + 10 * MS, "t1": x + 20 * MS} for x in t]
        for table, got in (("step", steps), ("forward", rows), ("stage", stages)):
            self.model.frame("TP0", frame(table, got), at + S)

    def rank(self, now: int):  # type: ignore[no-untyped-def]
        return self.model.ranks(0, now)[0]


def test_preemptions_inside_gaps_are_their_cause_and_all_parts_sum() -> None:
    rig, b = Rig(), Build()
    rig.second(S)
    b.preempted(S + 10 * MS, (S + 14 * MS, 812, "dockerd"))  # in a gap
    b.preempted(S + 45 * MS, (S + 53 * MS, 812, "dockerd"))  # 5 ms in a forward, 3 ms in the gap behind it
    b.slept(S + 71 * MS, S + 73 * MS)
    rig.feed.batch(b.batch(2 * S))
    rig.model.advance(2 * S + 500 * MS)
    got = rig.rank(2 * S + 500 * MS)
    causes = got.gaps.causes_ms
    assert causes["preempted"] == pytest.approx(7.0)
    assert causes["blocked"] == pytest.approx(2.0)
    assert sum(causes.values()) == pytest.approx(got.gaps.quantiles_ms.total)
    assert got.cpu.wait_ms == 12.0
    assert got.cpu.message == "a better one"
    assert got.cpu.culprits[0].kind == "other"


def test_throttling_is_a_cause_of_its_own() -> None:
    rig, b = Rig(), Build()
    rig.feed.batch(b.batch(S, throttle=quota(0, 0)))
    rig.second(S)
    b.preempted(S + 10 * MS, (S + 19 * MS, 0, "idle"))
    rig.feed.batch(b.batch(S + 500 * MS, throttle=quota(1, 9 * MS)))
    rig.feed.batch(b.batch(2 * S, throttle=quota(1, 9 * MS)))
    rig.model.advance(2 * S + 500 * MS)
    causes = rig.rank(2 * S + 500 * MS).gaps.causes_ms
    assert causes["throttled"] == pytest.approx(9.0)
    assert "preempted" not in causes
    assert sum(causes.values()) == pytest.approx(490.0)


def test_who_has_nothing_to_do_is_not_delayed() -> None:
    rig, b = Rig(), Build()
    rig.second(S, stage=IDLE_STAGE)
    rig.feed.batch(b.preempted(S + 10 * MS, (S + 14 * MS, 812, "dockerd")).batch(2 * S))
    rig.model.advance(2 * S + 500 * MS)
    assert set(rig.rank(2 * S + 500 * MS).gaps.causes_ms) == {"no work"}


def test_a_gap_waits_for_the_samples_of_its_time() -> None:
    rig, b = Rig(), Build()
    rig.feed.batch(b.batch(S))
    rig.second(S)
    rig.model.advance(2 * S + 350 * MS)
    early = rig.rank(2 * S + 350 * MS).gaps
    assert early.quantiles_ms.count == 49
    assert early.causes_ms == {}
    rig.feed.batch(b.preempted(S + 10 * MS, (S + 14 * MS, 812, "dockerd")).batch(2 * S))
    rig.model.advance(2 * S + 600 * MS)
    assert rig.rank(2 * S + 600 * MS).gaps.causes_ms["preempted"] == pytest.approx(4.0)


def test_recorded_samples_give_the_same_view() -> None:
    live, replay = Rig(), Rig()
    batch = Build().preempted(S + 10 * MS, (S + 14 * MS, 812, "dockerd"), (S + 15 * MS, 13, "kworker")).batch(2 * S)
    facts = HostFacts(
        {"TP0": RankIds(TID, TID, 0)}, {"TP0": Place(host_cpus=(0, 1), cpu=1, near_cpus=(0,))}, kernel_pids=(13,)
    )
    for side in (live, replay):
        side.second(S)
    live.feed.facts(facts)
    live.feed.batch(batch)
    handlers = replay.feed.handlers()
    for event in (facts, batch):
        handlers[type(event).__name__]("sched", to_frame(event), 2 * S)
    for side in (live, replay):
        side.model.advance(2 * S + 500 * MS)
    assert live.rank(3 * S) == replay.rank(3 * S)
    assert replay.rank(3 * S).cpu.place.cpu == 1


def test_ranks_come_go_and_restart() -> None:
    rig, b = Rig(), Build()
    rig.feed.batch(b.preempted(S, (S + 4 * MS, 812, "dockerd")).batch(2 * S))
    rig.feed.facts(HostFacts({"TP0": RankIds(500, 500), "TP1": RankIds(501, 501)}))
    assert set(rig.feed.ranks) == {"TP0", "TP1"}
    rig.feed.batch(b.batch(3 * S))  # TP1 is not in the model yet: nothing piles up
    assert rig.feed.ranks["TP0"].view(0, 3 * S).preemptions == 0, "a new process starts anew"
    rig.feed.facts(HostFacts())
    assert rig.feed.ranks == {}
    assert rig.feed.take("something else") is False


# --- GPUs -------------------------------------------------------------------------------------------


def reading(index: int, uuid: str, **more: object) -> GpuReading:
    return GpuReading(index, uuid, "H200", f"0000:{index:02x}:00.0", index, 1, **more)  # type: ignore[arg-type]


def test_gpus_of_the_server_alone_are_shown() -> None:
    batch = GpuBatch(
        True, "", 1, (reading(0, "A", sm_busy=0.5, throttle_reasons=("idle", "power cap")), reading(1, "B"))
    )
    (g,) = gpus.view(batch, {"A": ("TP0",)})
    assert (g.uuid, g.ranks, g.sm_busy, g.throttle_reasons) == ("A", ("TP0",), 0.5, ("power cap",))
    assert [x.uuid for x in gpus.view(batch, {})] == ["A", "B"]
    mig = GpuBatch(True, "", 1, (reading(0, "M", mig=2),))
    assert gpus.view(mig, {})[0].name == "H200 (MIG 2)"


# --- the threads --------------------------------------------------------------------------------------


class FakeSource:
    """Hands out empty batches; remembers what was asked of it."""

    level = "B"
    lost = 0
    needs = Needs("A", "tracefs", "sudo mount …")

    def __init__(self, watched: Sequence[Watched]) -> None:
        self.watched = [list(watched)]
        self.closed = False
        self.fail = False

    def watch(self, watched: Sequence[Watched]) -> None:
        self.watched.append(list(watched))

    def wait(self, timeout_s: float) -> None:
        time.sleep(0.01)

    def poll(self) -> SchedBatch:
        if self.fail:
            self.fail = False
            raise RuntimeError("odd kernel")
        b = Build("B").preempted(1, (2, 2, "kthreadd"))
        return b.batch(time.monotonic_ns())

    def close(self) -> None:
        self.closed = True


class FakeGpus:
    closed = False

    def poll(self) -> GpuBatch:
        return GpuBatch(True, "", time.monotonic_ns(), (reading(0, "A"),))

    def close(self) -> None:
        self.closed = True


def wait_for(watch: HostWatch, want: type, seconds: float = 10.0) -> Iterator[object]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _, event in watch.drain():
            if isinstance(event, want):
                yield event
        time.sleep(0.01)


def test_the_watch_leaves_events_and_gives_everything_back() -> None:
    sources: list[FakeSource] = []
    fake_gpus = FakeGpus()

    def open_source(watched: Sequence[Watched]) -> SchedSource:
        sources.append(FakeSource(watched))
        return sources[-1]

    woken: list[int] = []
    watch = HostWatch(wake=lambda: woken.append(1), open_source=open_source, open_gpus=lambda: fake_gpus)
    watch.start()
    me = os.getpid()
    watch.watch({"TP0": RankIds(me, me)}, [me])
    facts = next(f for f in wait_for(watch, HostFacts) if isinstance(f, HostFacts) and "TP0" in f.places and f.needs)
    assert facts.ranks == {"TP0": RankIds(me, me)}
    assert facts.kind(me) == "server"
    assert facts.needs == "level A needs tracefs: sudo mount …"
    assert facts.places["TP0"].allowed_cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert facts.places["TP0"].threads
    assert next(wait_for(watch, SchedBatch))
    assert isinstance(next(wait_for(watch, tuple)), tuple)
    watch.watch({"TP0": RankIds(1, 1)}, [1])
    facts = next(f for f in wait_for(watch, HostFacts) if isinstance(f, HostFacts) and f.ranks["TP0"].pid == 1)
    assert sources[0].watched[-1] == [Watched(1, 1, "TP0")]
    sources[0].fail = True
    end = time.monotonic() + 10
    while len(sources) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    assert len(sources) == 2, "after a mistake it is opened anew"
    assert sources[0].closed
    assert "odd kernel" in watch.problem
    watch.stop()
    assert sources[1].closed
    assert fake_gpus.closed
    assert woken


@pytest.mark.parametrize(
    "told",
    [
        [],
        [{}],
        [{}, {}],
        [{"TP0": RankIds(os.getpid(), os.getpid())}],
        [{"TP0": RankIds(os.getpid(), os.getpid())}, {}],
    ],
    ids=["nothing", "no-ranks-yet", "no-ranks-twice", "a-rank", "a-rank-that-went"],
)
def test_the_threads_sleep_whatever_they_are_told(told: list[dict[str, RankIds]]) -> None:
    watch = HostWatch(open_source=FakeSource, open_gpus=FakeGpus)
    for ranks in told[:1]:
        watch.watch(ranks, [os.getpid()])
    watch.start()
    try:
        for ranks in told[1:]:
            time.sleep(0.1)
            watch.watch(ranks, [os.getpid()])
        clocks = [time.pthread_getcpuclockid(t.ident) for t in watch._threads if t.ident is not None]
        time.sleep(0.2)  # what opening costs is not meant
        begun, before = time.monotonic(), sum(map(time.clock_gettime, clocks))
        time.sleep(0.5)
        share = (sum(map(time.clock_gettime, clocks)) - before) / (time.monotonic() - begun)
    finally:
        watch.stop()
    assert len(clocks) == 2
    assert share < 0.15, "a server that starts, or is gone, costs next to nothing"


def test_ranks_are_watched_as_soon_as_a_starting_server_has_them() -> None:
    watch = HostWatch(open_source=FakeSource, open_gpus=FakeGpus)
    watch.watch({}, [os.getpid()])
    watch.start()
    try:
        time.sleep(0.1)
        watch.watch({"TP0": RankIds(os.getpid(), os.getpid())}, [os.getpid()])
        assert next(wait_for(watch, SchedBatch, 10.0))
    finally:
        watch.stop()


def test_a_session_that_does_not_drain_costs_no_memory() -> None:
    watch = HostWatch(open_source=FakeSource, open_gpus=FakeGpus)
    watch.watch({"TP0": RankIds(os.getpid(), os.getpid())}, [])
    for _ in range(1000):
        watch._put(HostFacts())
    assert len(watch.drain()) == 256


def test_threads_and_kernel_threads() -> None:
    me = os.getpid()
    assert main_thread(me, me) == me
    assert main_thread(me, 2**22 - 5) == me
    assert thread_count(me)
    assert thread_count(2**22 - 5) is None
    assert is_kernel_thread(2) or not Path("/proc/2/stat").exists()
    assert not is_kernel_thread(me)
    assert not is_kernel_thread(2**22 - 5)


@pytest.mark.parametrize(
    ("command", "yes"),
    [
        ("/venv/bin/sgtop --attach :30000", True),
        ("sgtop", True),
        ("/venv/bin/python /venv/bin/sgtop top", True),
        ("/venv/bin/python3.11 -m sgtop_tui --once", True),
        ("python3 -u -X dev -Im sgtop_tui.cli", True),
        ("python3.13t -W ignore /usr/local/bin/sgtop", True),
        ("python -m sglang.launch_server --model sgtop", False),
        ("python -m pytest sgtop", False),
        ("python -c sgtop", False),
        ("python train.py sgtop", False),
        ("vim sgtop", False),
        ("tail -f /var/log/sgtop", False),
        ("/home/sgtop/bin/batch-job", False),
        ("bash -c sgtop", False),
        ("python", False),
        ("", False),
    ],
)
def test_an_sgtop_is_known_by_its_command_line(command: str, yes: bool) -> None:
    assert runs_sgtop(command.split()) is yes


def stranger(script: Path) -> int:
    """A process that sleeps and is nobody's child: what this process started would be its own."""
    script.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    script.chmod(0o755)
    begun = subprocess.run(["sh", "-c", '"$1" >&- 2>&- & echo $!', "sh", script], stdout=subprocess.PIPE, check=True)
    pid = int(begun.stdout)
    end = time.monotonic() + 10
    while b"python" not in Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < end:
        time.sleep(0.01)
    return pid


def test_this_sgtop_others_and_strangers_are_told_apart(tmp_path: Path) -> None:
    watch = HostWatch(open_source=FakeSource, open_gpus=FakeGpus)
    watch.watch({"TP0": RankIds(1, 1)}, [])
    other, batch_job = stranger(tmp_path / "sgtop"), stranger(tmp_path / "batch-job")
    own = subprocess.Popen([tmp_path / "batch-job"])
    try:
        b = Build().preempted(1, (2, other, "sgtop"), (3, batch_job, "batch-job"), (4, own.pid, "x"), (5, 1, "init"))
        assert watch._know(b.batch(S))
        watch._send_facts()
        ((_, facts),) = watch.drain()
        assert isinstance(facts, HostFacts)
        kinds = [facts.kind(pid) for pid in (os.getpid(), own.pid, other, batch_job)]
        assert kinds == ["sgtop", "sgtop", "another-sgtop", "other"]
        again = from_frame(to_frame(facts), HostFacts)
        assert again == facts, "recordings keep it"
        old = to_frame(facts)
        del old["x"]["other_sgtop_pids"]
        assert from_frame(old, HostFacts).kind(other) == "other", "those of before lack it"
    finally:
        for pid in (other, batch_job):
            os.kill(pid, signal.SIGKILL)
        own.kill()
        own.wait()


@pytest.mark.parametrize("host_pids", [False, True])
def test_who_has_ended_is_known_within_a_second_and_forgotten(host_pids: bool) -> None:
    rig = Rig()
    watch = HostWatch(open_source=FakeSource, open_gpus=FakeGpus)
    watch.watch({"TP0": RankIds(TID, TID)}, [])
    watch._send_facts()
    outside = 2**22 - 3
    child = subprocess.Popen(["sh", "-c", "exec sleep 60"])
    watch._seen = {child.pid: "other", outside: "other"}

    def at(time_ns: int, *, ran: bool = True) -> set[int]:
        b = Build()
        if ran:
            b.preempted(time_ns - 20 * MS, (time_ns - 10 * MS, child.pid, "a"), (time_ns, outside, "b"))
        batch = replace(b.batch(time_ns), host_pids=host_pids)
        if watch._who_ended(batch):
            watch._send_facts()
        for _, event in watch.drain():
            rig.feed.take(event)
        rig.feed.batch(batch)
        got = rig.feed.ranks["TP0"].view(0, time_ns)
        assert got is not None
        return {c.pid for c in got.culprits if c.ended}

    never = set() if host_pids else {outside}
    try:
        assert at(10 * S) == never, "where pids are the host's, one that was never here is outside of the container"
    finally:
        child.kill()
        child.wait()
    assert at(10 * S + 200 * MS) == never, "it is looked for once a second"
    assert at(11 * S) == {child.pid, *never}
    assert at(14 * S, ran=False) == {child.pid, *never}
    assert watch._ended
    at(24 * S, ran=False)
    assert not watch._ended


def test_a_stream_of_short_processes_costs_a_bounded_look() -> None:
    watch = HostWatch(open_source=FakeSource, open_gpus=FakeGpus)
    pids = range(3_000_000, 3_001_000)
    watch._seen = dict.fromkeys(pids, "other")
    b = Build()
    for i, pid in enumerate(pids):
        b.preempted(S + i * 1000, (S + i * 1000 + 500, pid, "cc1"))
    watch._who_ended(b.batch(2 * S))
    assert len(watch._lately) == len(watch._ended) == 128


# --- end to end on this host ----------------------------------------------------------------------------


@contextlib.contextmanager
def watched(pid: int) -> Iterator[ContentionFeed]:
    """A feed with one rank that is process ``pid``, read by the real threads."""
    watch = HostWatch(open_gpus=FakeGpus)
    watch.watch({"TP0": RankIds(pid, pid)}, [pid])
    watch.start()
    model = Model()
    model.add("TP0", pid)
    model.hello("TP0", HELLO, time.monotonic_ns())
    feed = ContentionFeed(model)
    feed.drain = lambda: [feed.take(event) for _, event in watch.drain()]  # type: ignore[attr-defined]
    try:
        yield feed
    finally:
        watch.stop()


def view(feed: ContentionFeed) -> Cpu | None:
    """The rank's view of the last 5 s, all culprits listed."""
    feed.drain()  # type: ignore[attr-defined]
    rank = feed.ranks.get("TP0")
    return rank.view(0, time.monotonic_ns(), shown=100) if rank is not None else None


def test_a_real_competitor_is_named_and_gone_after_it() -> None:
    """A spinning loop stands for a rank's main thread."""
    cpu = str(max(os.sched_getaffinity(0)))
    with rig.running(rig.BUSY, "rank", cpu) as victim, watched(victim.pid) as feed:

        def named(pid: int) -> bool:
            got = view(feed)
            return got is not None and pid in {c.pid for c in got.culprits if c.kind == "other"}

        with rig.running(rig.BUSY, "hog", cpu, stranger=True) as hog:
            end = time.monotonic() + 15
            while not named(hog.pid):
                assert time.monotonic() < end, view(feed)
                time.sleep(0.05)
        end = time.monotonic() + 15
        while named(hog.pid):
            assert time.monotonic() < end, view(feed)
            time.sleep(0.1)


def test_a_real_quota_is_what_held_it_back_not_the_neighbours() -> None:
    cpu = str(max(os.sched_getaffinity(0)))
    with rig.running(rig.BUSY, "rank", cpu) as victim, rig.quota(victim.pid, 0.04), watched(victim.pid) as feed:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            time.sleep(0.1)
            got = view(feed)
    assert got is not None
    assert got.nr_throttled
    assert got.throttled_ms is not None
    assert got.throttled_ms > 1500, got
    assert got.throttled_ms + (got.wait_ms or 0.0) < 5600, "no wait is counted twice"
    assert got.place is not None
    assert got.place.quota_cpus == pytest.approx(0.04)
