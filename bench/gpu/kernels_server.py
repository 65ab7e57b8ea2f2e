"""Kernel tracing on a real server with a GPU: beside torch's profiler, under load, how it leaves. run_all.py starts it.

    python bench/gpu/kernels_server.py [--port 30000] [--bs 1] [--only cycles profile leave] [--budget 500]

A JSON line a check (that both see the same kernels is ``equal.py``):

* ``cycles``: 50 times on and off during the decode and short requests: no failed request
* ``profile``: ``/start_profile`` before, during and after tracing: as many kernels a step in each trace
* ``leave``: seconds from detaching to the agent's thread being gone, while tracing

The last line sums up; exit status 1 if a check failed.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), *(str(REPO / part) for part in ("agent", "probes", "core"))]
sys.path.append("/tmp/sgtop-gpu/site")  # the server's bundle: what sgtop needs and the host lacks

from sgtop_core.model.kernel_view import KernelMode, KernelView  # noqa: E402
from sgtop_core.session import Session, SessionOptions  # noqa: E402

STEPS = 20


Profile = dict[str, list[tuple[float, float]]]
"""Kernel → start and length of each launch, µs."""


class Talk:
    """The server's HTTP interface, as far as it is needed."""

    def __init__(self, port: int) -> None:
        self.port = port

    def post(self, path: str, body: dict[str, Any], timeout: float = 600) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return bytes(reply.read())

    def generate(self, tokens: int) -> bytes:
        ids = [random.randrange(10, 900) for _ in range(64)]
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.post("/generate", {"input_ids": ids, "sampling_params": sampling})

    @contextmanager
    def decoding(self, bs: int) -> Iterator[None]:
        """``bs`` requests decode until the end."""

        def one() -> None:
            try:
                self.generate(30000)
            except OSError:
                return

        threads = [threading.Thread(target=one, daemon=True) for _ in range(bs)]
        for t in threads:
            t.start()
        time.sleep(4)
        try:
            yield
        finally:
            self.post("/abort_request", {"abort_all": True})
            for t in threads:
                t.join(30)

    def profile(self, steps: int = STEPS, first: int | None = None) -> tuple[Profile, int]:
        """(kernel → its launches, steps in the trace) of a profile of ``steps`` steps, from ``first`` on.

        ``first``: a ``forward_ct`` that is yet to come; None begins at once.
        """
        with tempfile.TemporaryDirectory() as folder:
            body: dict[str, Any] = {"num_steps": steps, "activities": ["CPU", "GPU"], "output_dir": folder}
            body |= {"with_stack": False, "record_shapes": False}
            if first is not None:
                body["start_step"] = first
            # The call returns when the profile has begun, or when it is over, depending on the version.
            threading.Thread(target=self.post, args=("/start_profile", body), daemon=True).start()
            end = time.monotonic() + 120
            size = -1
            while time.monotonic() < end:
                time.sleep(1)
                traces = sorted(Path(folder).rglob("*.trace.json*"))
                if traces and traces[0].stat().st_size == size > 0:
                    break
                size = traces[0].stat().st_size if traces else -1
            else:
                raise RuntimeError("no trace was written within 120 s")
            opener = gzip.open if traces[0].suffix == ".gz" else open
            with opener(traces[0], "rt") as f:
                events = json.load(f)["traceEvents"]
        out: Profile = collections.defaultdict(list)
        spans = [
            e for e in events if e.get("cat") == "gpu_user_annotation" and str(e.get("name", "")).startswith("step[")
        ]
        # One span a step and stream.
        decode = collections.Counter(e["tid"] for e in spans if "DECODE" in e["name"])
        kernels = [e for e in events if e.get("cat") == "kernel"]
        for e in kernels:
            out[e["name"]].append((float(e["ts"]), float(e["dur"])))
        return out, max(decode.values(), default=0)


def live(port: int, kernels: str = "off", window_s: float = 60.0) -> Session:
    """A session whose first rank is live."""
    session = Session(f":{port}", SessionOptions(kernels=kernels, window_s=window_s))
    session.start()
    end = time.monotonic() + 40
    while session.snapshot().attach.state != "live":
        if time.monotonic() > end:
            raise RuntimeError(f"not live: {session.snapshot().attach}")
        time.sleep(0.1)
    return session


def tracing(session: Session) -> KernelView | None:
    ranks = session.snapshot().ranks
    return ranks[0].tracing if ranks else None


def switch(session: Session, mode: str, *states: str, timeout: float = 20.0) -> KernelView:
    """Ask for a mode and wait for one of the states."""
    reply = session.command(None, "kernels", {"mode": mode})
    if not reply["ok"]:
        raise RuntimeError(f"kernels {mode}: {reply}")
    end = time.monotonic() + timeout
    while True:
        view = tracing(session)
        if view is not None and view.state in states:
            return view
        if time.monotonic() > end or (view is not None and view.state in ("failed", "unavailable")):
            raise RuntimeError(f"not {states}: {view.state if view else None} {view.reason if view else ''}")
        time.sleep(0.02)


def decode_table(view: KernelView | None) -> KernelMode | None:
    return next((m for m in view.modes if m.mode == "DECODE"), None) if view is not None else None


def cycles(talk: Talk, bs: int, n: int = 50) -> dict[str, Any]:
    failures: list[str] = []
    answered = 0
    stop = threading.Event()

    def small() -> None:
        nonlocal answered
        while not stop.is_set():
            try:
                talk.generate(40)
                answered += 1
            except OSError as e:
                failures.append(str(e))

    with talk.decoding(bs):
        workers = [threading.Thread(target=small) for _ in range(2)]
        for w in workers:
            w.start()
        session = live(talk.port)
        try:
            for _ in range(n):
                switch(session, "on", "tracing")
                time.sleep(0.2)
                view = switch(session, "off", "off")
        finally:
            session.stop()
            stop.set()
            for w in workers:
                w.join(60)
    return {"cycles": n, "answered": answered, "failures": failures[:3], "records": view.records,
            "ring_mib": view.ring_bytes / 2**20, "ok": not failures and answered > 0}  # fmt: skip


def profile(talk: Talk, bs: int) -> dict[str, Any]:
    per_step: dict[str, float] = {}

    def one(name: str) -> None:
        kernels, steps = talk.profile()
        per_step[name] = round(sum(len(v) for v in kernels.values()) / max(steps, 1), 1)

    with talk.decoding(bs):
        one("before")
        session = live(talk.port)
        try:
            switch(session, "on", "tracing")
            time.sleep(1)
            one("during")
            view = switch(session, "on", "tracing", timeout=30)
            records = view.records
            time.sleep(3)
            view = tracing(session) or view
            back = view.records - records
            table = decode_table(view)
            switch(session, "off", "off")
        finally:
            session.stop()
        one("after")
    low, high = min(per_step.values()), max(per_step.values())
    return {"kernels_a_step": per_step, "records_when_back": back,
            "launches_per_step_when_back": table.launches_per_step if table else None,
            "ok": low > 0 and high / low < 1.03 and back > 100}  # fmt: skip


def leave(talk: Talk, bs: int) -> dict[str, Any]:
    took = []
    with talk.decoding(bs):
        for _ in range(5):
            session = live(talk.port)
            switch(session, "on", "tracing")
            time.sleep(1)
            rank = session.snapshot().ranks[0]
            t = time.monotonic()
            session.stop()
            while any(name.startswith(("sgtop-agent", "sgtop-flush", "sg:")) for name in _threads(rank.pid)):
                if time.monotonic() > t + 10:
                    break
                time.sleep(0.01)
            took.append(round(time.monotonic() - t, 3))
    return {"seconds": took, "ok": max(took) < 1.0}


def _threads(pid: int | None) -> list[str]:
    out = []
    for comm in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            out.append(comm.read_text().strip())
        except OSError:
            continue
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=int(os.environ.get("SGTOP_BENCH_PORT", "30000")))
    parser.add_argument("--bs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=500.0)
    checks = {"cycles": cycles, "profile": profile, "leave": leave}
    parser.add_argument("--only", nargs="+", choices=sorted(checks), default=list(checks))
    a = parser.parse_args()
    talk = Talk(a.port)
    end = time.monotonic() + a.budget
    failed = []
    for name in a.only:
        t = time.monotonic()
        if t > end - 60:
            outcome: dict[str, Any] = {"ok": False, "error": "no time left"}
        else:
            try:
                outcome = checks[name](talk, a.bs)
            except Exception as e:  # the next check may still tell something
                outcome = {"ok": False, "error": f"{type(e).__name__}: {e}"}
        print(json.dumps({"check": name, "took_s": round(time.monotonic() - t, 1), **outcome}), flush=True)
        if not outcome["ok"]:
            failed.append(name)
    print(json.dumps({"bench": "kernels_server", "bs": a.bs, "failed": failed}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
