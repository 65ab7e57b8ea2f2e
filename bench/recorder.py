"""What recording costs: MB a minute, CPU of the recorder, and its memory over an hour of 1,000 steps/s.

    python bench/recorder.py                 # an hour of one rank, and a minute of eight; some minutes
    python bench/recorder.py --minutes 5     # shorter

Frames come from the tests' generator (noise as an 8B model at batch 32 shows it), an hour of them as fast as they can
be made: CPU is counted on the recorder's work alone and set against the time that the frames stand for.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from sgtop_core.recording import recorder as recorder_module  # noqa: E402  (found through the path above)
from sgtop_core.recording.quantise import quantise  # noqa: E402
from sgtop_core.recording.reader import Recording  # noqa: E402
from sgtop_core.recording.recorder import Recorder  # noqa: E402

from tests.recording import frames  # noqa: E402


def rss_mb() -> float:
    """Resident memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def run(ranks: int, minutes: float, steps_per_s: int, ring_s: float) -> None:
    """Record ``minutes`` of generated frames into a file and a ring; print what it took."""
    recorder_module.CHUNK_S = 3600.0  # chunks are cut here, after every 0.8 s of frames, not by the wall clock
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sgtop"
        r = Recorder(ring_s=ring_s)
        r.start(path)
        tap_ns = pack_ns = taps = 0
        memory: list[tuple[float, float]] = []
        cut = frames.START
        total = int(minutes * 60)
        sources = [frames.Rank(i, steps_per_s) for i in range(ranks)]
        for rank in sources:
            r.tap(f"TP{rank.rank}", frames.hello(rank.rank, tp=ranks), frames.START)
        for tick in itertools.count():
            now = frames.START + (tick + 1) * 50_000_000
            if now > frames.START + total * 1_000_000_000:
                break
            batch = [(f"TP{x.rank}", quantise(f)) for x in sources for f in x.flush()]
            a = time.thread_time_ns()
            for source, frame in batch:
                r.tap(source, frame, now)
            tap_ns += time.thread_time_ns() - a
            taps += len(batch)
            if now - cut >= 800_000_000:
                cut = now
                a = time.thread_time_ns()
                with r._work:
                    r._pack()
                pack_ns += time.thread_time_ns() - a
            if tick % 100 == 0:
                memory.append(((now - frames.START) / 6e10, rss_mb()))
        r.close()
        size = os.path.getsize(path)
        begin = time.perf_counter()
        with Recording(path) as again:
            n = sum(1 for _ in again)
            damage = again.damage
        read_s = time.perf_counter() - begin
    settled = [m for t, m in memory if t >= min(10.0, minutes / 2)]
    print(f"{ranks} ranks, {steps_per_s} steps/s, {minutes:g} min, ring {ring_s:g} s")
    print(f"  size            {size / 1e6 / minutes:.2f} MB a minute ({size / 1e6:.1f} MB)")
    print(f"  recorder        {100 * pack_ns / (total * 1e9):.2f} % of a core")
    a_frame = tap_ns / max(taps, 1) / 1e3
    print(f"  tap             {100 * tap_ns / (total * 1e9):.3f} % of a core, {a_frame:.1f} µs a frame")
    print(f"  memory          {memory[0][1]:.0f} MB at the start, {min(settled):.0f} to {max(settled):.0f} MB after")
    print(f"  read back       {n} entries, {damage} damaged, {total / read_s:.0f} times as fast as it was")


def main() -> None:
    """Both measurements."""
    p = argparse.ArgumentParser(description=main.__doc__)
    p.add_argument("--minutes", type=float, default=60.0)
    args = p.parse_args()
    print(f"date {time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    run(1, args.minutes, 1000, 300.0)
    run(8, min(args.minutes, 1.0), 1000, 300.0)


if __name__ == "__main__":
    main()
