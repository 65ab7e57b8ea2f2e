"""The exporter: what it counts, what it leaves out, and what Prometheus's own tools say of it."""

from __future__ import annotations

import dataclasses as dc
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sgtop_core.exporter.serve import Exporter, ListenError, parse_address
from sgtop_core.exporter.totals import BUCKETS_S, Totals
from sgtop_core.model.snapshot import Alert, Cpu, Gpu, Snapshot
from sgtop_core.recording.quantise import quantise

from tests.recording import frames
from tests.recording.live import Live

EXAMPLES = Path(__file__).parents[2] / "examples"


class Served:
    """A live session with its exporter."""

    def __init__(
        self, scene: str = "eager-fallback", seconds: float = 8.0, more: Callable[[Snapshot], Snapshot] = lambda s: s
    ) -> None:
        self.more = more
        self.totals = Totals()
        self.live = Live(scene)
        self.live.taps.append(self.totals.tap)
        for e in list(self.live.entries):
            self.totals.tap(*e)
        self.live.run(seconds)
        self.exporter = Exporter("127.0.0.1:0", self.snapshot, self.totals)

    def snapshot(self) -> Snapshot | None:
        return self.more(self.live.snapshots[-1]) if self.live.snapshots else None

    def get(self, accept: str = "application/openmetrics-text; version=1.0.0") -> str:
        request = urllib.request.Request(self.exporter.url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=10) as r:
            return str(r.read().decode())

    def values(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        out: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(self.get()):
            for s in family.samples:
                out.setdefault(s.name, {})[tuple(sorted(s.labels.items()))] = s.value
        return out


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    s = Served()
    yield s
    s.exporter.close()


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        assert not os.environ.get("CI"), ".ci/run installs Prometheus"
        pytest.skip("needs Prometheus: apt-get install prometheus")
    return path


def test_promtool_is_silent(served: Served) -> None:
    text = served.get(accept="text/plain")
    out = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_counters_are_those_of_the_frames(served: Served) -> None:
    values = served.values()
    rank = served.live.model.slots["TP0"].state
    assert rank is not None
    steps = {dict(k)["mode"]: v for k, v in values["sgtop_steps_total"].items() if ("rank", "TP0") in k}
    sent = {"DECODE": 0, "EXTEND": 0}
    for source, frame, _ in served.live.entries:
        if source == "TP0" and frame.get("e") == "step":
            for m in memoryview(frame["c"]["mode"]).cast("q"):
                sent[rank.mode_name(m)] += 1
    assert steps == sent
    key = (("mode", "DECODE"), ("rank", "TP0"))
    assert values["sgtop_eager_steps_total"][key] > 0
    assert values["sgtop_run_batch_seconds_count"][key] == steps["DECODE"]
    assert values["sgtop_stage_seconds_total"][("rank", "TP0"), ("stage", "run_batch")] > 0


def test_gauges_are_those_of_the_snapshot(served: Served) -> None:
    values, s = served.values(), served.live.snapshots[-1]
    rank = s.ranks[0]
    assert values["sgtop_up"][()] == 1
    assert values["sgtop_queue_requests"][("queue", "running"), ("rank", "TP0")] == rank.queue.running
    p99 = rank.modes["DECODE"].step_ms.p99
    assert p99 is not None
    assert values["sgtop_step_p99_seconds"][("mode", "DECODE"), ("rank", "TP0")] == pytest.approx(p99 / 1e3)
    assert any(v == 1 for v in values["sgtop_alert_active"].values())
    shares = [v for k, v in values["sgtop_gap_ratio"].items() if ("rank", "TP0") in k]
    assert rank.gaps is not None
    assert sum(shares) == pytest.approx(rank.gaps.quantiles_ms.total / 1e3 / s.covered_s, rel=1e-6)


def test_what_is_not_known_is_left_out(served: Served) -> None:
    values = served.values()
    assert "sgtop_cpu_wait_ratio" not in values, "no scheduling samples here"
    agentless = [k for k in values["sgtop_rank_up"] if ("rank", "TP9") in k]
    assert [values["sgtop_rank_up"][k] for k in agentless] == [0]
    assert not [k for k in values["sgtop_queue_requests"] if ("rank", "TP9") in k]


def test_before_the_first_snapshot() -> None:
    exporter = Exporter("127.0.0.1:0", lambda: None, Totals())
    with urllib.request.urlopen(exporter.url, timeout=10) as r:
        assert "sgtop_steps" in r.read().decode()
    exporter.close()


def test_label_sets_are_bounded(served: Served) -> None:
    """Another ten seconds make values larger, not more."""
    before = {n: set(v) for n, v in served.values().items()}
    served.live.run(10.0)
    after = {n: set(v) for n, v in served.values().items()}
    grown = {n for n in after if len(after[n]) > len(before.get(n, set()))}
    assert grown <= {"sgtop_gap_ratio", "sgtop_alert_active"}, "only causes and findings may be new"
    allowed = {"rank", "mode", "stage", "cause", "queue", "runner", "generation", "le", "gpu", "role", "table", "id",
               "severity", "reason", "model", "sglang_version", "way", "state"}  # fmt: skip
    assert {k for v in after.values() for labels in v for k, _ in labels} <= allowed


def test_frames_that_are_not_as_they_should_be_do_not_stop_it() -> None:
    t = Totals()
    for frame in ({"k": "ev"}, {"k": "ev", "e": "step", "n": 3, "c": {"t0": b"x"}}, {"k": "ev", "e": "step", "n": "a"}):
        t.tap("TP0", frame, 0)
    assert not t.read()["TP0"].steps


def test_histogram_buckets() -> None:
    t = Totals()
    for s, f, now in frames.stream(1, 1.0):
        t.tap(s, quantise(f), now)
    h = t.read()["TP0"].run_batch[frames.MODES["DECODE"]]
    cumulative = h.cumulative()
    assert [le for le, _ in cumulative] == [*(f"{b:g}" for b in BUCKETS_S), "+Inf"]
    assert cumulative[-1][1] == t.read()["TP0"].steps[frames.MODES["DECODE"]]
    at = dict(cumulative)
    assert at["0.00025"] < 50
    assert at["0.0005"] > 900, "run_batch takes about 0.29 ms"


@pytest.mark.parametrize(
    ("text", "want"),
    [("127.0.0.1:9400", ("127.0.0.1", 9400)), (":9400", ("127.0.0.1", 9400)), ("[::1]:9", ("::1", 9))],
)
def test_addresses(text: str, want: tuple[str, int]) -> None:
    assert parse_address(text) == want


@pytest.mark.parametrize("text", ["9400", "x", "host:", "a:99999", "a:-1"])
def test_not_an_address(text: str) -> None:
    with pytest.raises(ListenError, match="not an address"):
        parse_address(text)


def test_a_taken_port_is_an_answer(served: Served) -> None:
    taken = served.exporter.url.split("/")[2]
    with pytest.raises(ListenError, match="cannot listen"):
        Exporter(taken, lambda: None, Totals())


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def ask(port: int, query: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as r:
        answer = json.load(r)
    assert answer["status"] == "success"
    return list(answer["data"]["result"])


def queries() -> list[str]:
    """Every query of the dashboard, its variables as Grafana would fill them in."""
    board = json.loads((EXAMPLES / "grafana" / "sgtop.json").read_text())
    out = []
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            q = target["expr"]
            for name, value in (("$__rate_interval", "4s"), ("$rank", ".*"), ("$instance", ".*")):
                q = q.replace(name, value)
            out.append(q)
    return out


def everything(s: Snapshot) -> Snapshot:
    """``s`` with what a simulated rank lacks: a GPU with counters, scheduling samples, a finding, a loss."""
    ranks = tuple(dc.replace(r, cpu=Cpu("A", "", 12.0, 3, 5.0, (), 2.0, 1, True)) for r in s.ranks)
    gpu = Gpu(
        0, "GPU-1", "H200", ("TP0",), kernel_running=0.5, sm_busy=0.4, sm_occupancy=0.3, tensor_busy=0.2, dram_busy=0.5,
        memory_used_bytes=5, memory_total_bytes=10, power_w=300.0, temperature_c=50, sm_clock_mhz=1500,
        throttle_reasons=("power",),
    )  # fmt: skip
    return dc.replace(
        s, ranks=ranks, gpus=(gpu,), alerts=(Alert("x", "warning", 1.0, "TP0", "t", "e", "n"),), lost={"step": 1}
    )


@pytest.fixture(scope="module")
def rich() -> Iterator[Served]:
    s = Served("decode-bound", 8.0, everything)
    yield s
    s.exporter.close()


def test_promtool_is_silent_about_everything(rich: Served) -> None:
    text = rich.get(accept="text/plain")
    assert "sgtop_gpu_throttled" in text
    out = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_a_real_prometheus_scrapes_it_and_every_query_of_the_dashboard_has_data(rich: Served, tmp_path: Path) -> None:
    port = free_port()
    example = (EXAMPLES / "prometheus" / "prometheus.yml").read_text()
    assert "127.0.0.1:9400" in example
    address = rich.exporter.url.split("/")[2]
    config = example.replace("127.0.0.1:9400", address).replace("scrape_interval: 5s", "scrape_interval: 1s")
    file = tmp_path / "prometheus.yml"
    file.write_text(config)
    check = subprocess.run([tool("promtool"), "check", "config", str(file)], capture_output=True, text=True, timeout=60)
    assert check.returncode == 0, check.stdout + check.stderr
    command = [
        tool("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as p:
        try:
            end = time.monotonic() + 60
            while True:
                try:
                    if len(ask(port, "count_over_time(sgtop_up[1m]) >= 5")) == 1:
                        break
                except OSError:
                    pass
                assert time.monotonic() < end, (tmp_path / "log").read_text()
                rich.live.run(0.5)  # counters must move for rates
                time.sleep(0.5)
            assert [q for q in queries() if not ask(port, q)] == []
            assert ask(port, "up{job='sgtop'}")[0]["value"][1] == "1"
        finally:
            p.terminate()
            p.wait(20)
