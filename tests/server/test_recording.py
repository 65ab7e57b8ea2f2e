"""A recording of a real server replays, snapshot by snapshot, to what the live run showed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from sgtop_core.jsonout import as_json
from sgtop_core.model.snapshot import Snapshot
from sgtop_core.recording.keeper import attach
from sgtop_core.recording.reader import Recording
from sgtop_core.recording.replay import ticks
from sgtop_core.report.measure import measure
from sgtop_core.session import Session

from tests.server.traffic import Background, everything
from tools.sglang_cpu.server import CpuServer


def test_the_replay_is_the_live_run(server: CpuServer, tmp_path: Path) -> None:
    shown: list[Snapshot] = []

    class Watched(Session):
        def _publish(self, now: int, unix: float) -> None:
            super()._publish(now, unix)
            assert self._snapshot is not None
            shown.append(self._snapshot)

    session = Watched(f":{server.port}")
    recorder = attach(session)
    recorder.start(tmp_path / "x.sgtop")
    session.start()
    try:
        everything(server.client)
        time.sleep(1.0)
    finally:
        session.stop()
        recorder.close()
    assert recorder.state().lost == 0
    with Recording(tmp_path / "x.sgtop") as r:
        assert r.complete
        again = list(ticks(r))
    live = shown[1:]  # the first is made at the start, before any tick
    assert len(again) == len(live) > 8
    for was, now in zip(live, again, strict=True):
        assert json.dumps(as_json(now)) == json.dumps(as_json(was))
    with Recording(tmp_path / "x.sgtop") as r:
        figures = measure(r)
    assert {"EXTEND", "DECODE"} <= set(figures.ranks[0].modes)


def test_record_killed_in_the_middle(server: CpuServer, tmp_path: Path) -> None:
    """``kill -9`` of `sgtop record`: the file is there up to the last second, and the server goes on."""
    path = tmp_path / "x.sgtop"
    command = [sys.executable, "-m", "sgtop_tui", "record", "--attach", f":{server.port}", "-o", str(path)]
    with Background(server.client) as traffic, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as p:
        end = time.monotonic() + 60
        while not path.exists() or path.stat().st_size < 6_000:
            assert time.monotonic() < end, "nothing was recorded"
            assert p.poll() is None, p.stderr.read() if p.stderr else ""
            time.sleep(0.1)
        killed = time.monotonic_ns()
        os.kill(p.pid, signal.SIGKILL)
        p.wait(20)
    assert traffic.failures == []
    with Recording(path) as r:
        assert not r.complete
        assert killed - r.end_ns < 3e9  # a second, and what a busy machine needs
        assert sum(1 for _ in ticks(r)) > 0


def test_metrics_count_every_step(server: CpuServer) -> None:
    command = [sys.executable, "-m", "sgtop_tui", "metrics", "--attach", f":{server.port}", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        try:
            url = p.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)

            def value(pattern: str) -> float | None:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    found = re.findall(f"^{pattern} (\\S+)$", answer.read().decode(), re.M)
                return sum(map(float, found)) if found else None

            end = time.monotonic() + 60
            while value("sgtop_up") != 1:
                assert time.monotonic() < end, "never attached"
                time.sleep(0.2)
            before = value(r"sgtop_steps_total\{[^}]*\}") or 0.0
            asked = server.client.generate([7, 8, 9, 10], 24)
            assert asked.completion_tokens == 24
            end = time.monotonic() + 30
            # One prefill and 23 decodes, and what the overlapping scheduler launches before it knows the end.
            while (counted := (value(r"sgtop_steps_total\{[^}]*\}") or 0.0) - before) < 24:
                assert time.monotonic() < end, f"{counted:.0f} of 24 steps were counted"
                time.sleep(0.2)
        finally:
            p.send_signal(signal.SIGTERM)
            assert p.wait(20) == 0
