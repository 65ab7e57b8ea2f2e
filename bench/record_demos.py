"""Records the embedded recordings that `sgtop demo` plays and the tests use, from servers that run here.

    python bench/record_demos.py --attach :30000 --traffic http://127.0.0.1:30000 cpu-server cpu-contention

Start the server with `--served-model-name NAME`, so that no path of this machine is in the recording. The folder of
the result is core/sgtop_core/recording/embedded; every file must stay under 1 MB.
For GPUs: bench/gpu/record_sessions.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgtop_core.recording.reader import Recording
from sgtop_core.recording.recorder import Recorder
from sgtop_core.session import Session, SessionOptions

from tests.sched import rig
from tools.sglang_cpu.client import Client
from tools.sglang_cpu.traffic import Traffic

OUT = Path(__file__).parents[1] / "core/sgtop_core/recording/embedded"
MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Scene:
    """One recording: what it shows, how long, and what happens meanwhile."""

    name: str
    says: str
    order: int
    seconds: float
    meanwhile: Callable[[Session, float], None]


def nothing(session: Session, seconds: float) -> None:
    """Just watch."""
    time.sleep(seconds)


def neighbour(session: Session, seconds: float) -> None:
    """A busy process shares the scheduler's CPU in the second third."""
    pid = next(r.pid for r in session.snapshot().ranks if r.pid is not None)
    before = os.sched_getaffinity(pid)
    cpu = min(before)
    time.sleep(seconds / 3)
    threads = [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    try:
        for t in threads:
            os.sched_setaffinity(t, {cpu})
        with rig.running(rig.BUSY, "batch-job", str(cpu), stranger=True):
            time.sleep(seconds / 3)
    finally:
        for t in threads:
            try:
                os.sched_setaffinity(t, before)
            except OSError:
                continue  # a thread that has ended
    time.sleep(seconds / 3)


SCENES = (
    Scene("cpu-server", "a small model on a CPU server: prefill, decode, bursts, quiet spells", 40, 45.0, nothing),
    Scene("cpu-contention", "the same server while a busy process shares the scheduler's CPU", 50, 45.0, neighbour),
)


def record(scene: Scene, target: str, out: Path, kernels: str = "off") -> Path:
    """Record one scene, with kernel tracing ``off``, in ``windows`` or ``on``; the path of its file."""
    path = out / f"{scene.name}.sgtop"

    def meta() -> dict[str, Any]:
        return {
            "demo": scene.says,
            "order": scene.order,
            "recorded": time.strftime("%Y-%m-%d"),
            "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Linux {platform.release()}",
            "command": f"bench/record_demos.py {scene.name}",
        }

    session = Session(target, SessionOptions(readonly=True, kernels=kernels))
    recorder = Recorder(meta=meta)
    session.taps.append(recorder.tap)
    recorder.start(path, overwrite=True)
    session.start()
    try:
        scene.meanwhile(session, scene.seconds)
    finally:
        session.stop()
        recorder.close()
    return path


def check(path: Path) -> None:
    """A recording that is passed on: small, whole, without paths of this machine."""
    size = path.stat().st_size
    with Recording(path) as r:
        words = " ".join(repr({k: v for k, v in e.frame.items() if k != "c"}) for e in r)
        found = sorted(
            {w for w in (os.path.expanduser("~"), os.getcwd(), platform.node()) if len(w) > 3 and w in words}
        )
        print(f"{path.name}: {size:,} bytes, {r.seconds:.1f} s, complete {r.complete}, damage {r.damage}")
    if size > MAX_BYTES or found:
        raise SystemExit(f"{path.name} cannot be embedded: {size} bytes, names of this machine: {found}")


def main() -> None:
    """Record the scenes that were named."""
    p = argparse.ArgumentParser(description=main.__doc__)
    p.add_argument("--attach", required=True)
    p.add_argument("--traffic", metavar="URL", help="make traffic for this server meanwhile")
    p.add_argument("--out", type=Path, default=OUT)
    p.add_argument("names", nargs="*", default=[s.name for s in SCENES])
    args = p.parse_args()
    stop = threading.Event()
    if args.traffic:
        traffic = Traffic(Client(args.traffic), stop)
        threading.Thread(target=traffic.run, daemon=True).start()
        time.sleep(2)
    for scene in SCENES:
        if scene.name in args.names:
            check(record(scene, args.attach, args.out))
    stop.set()


if __name__ == "__main__":
    main()
