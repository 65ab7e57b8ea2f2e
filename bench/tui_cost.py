"""What the screen costs: the real app on a real pseudo-terminal of 200 × 60, fed four changing snapshots a second.

Prints the share of one core that the process takes, all threads, after a warm-up. The snapshots (eight ranks, every
figure moving) are built before, so that only the screen is measured; the budget of DESIGN §9 is 5 % of a core.

    PYTHONPATH=agent:probes:core:tui:. python bench/tui_cost.py [--seconds 20] [--size 200x60] [--json]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WARM_UP_S = 3.0


class Cycle:
    """A source that hands out prepared snapshots in turn."""

    readonly = False

    def __init__(self, snapshots: list[Any]) -> None:
        self._snapshots = snapshots
        self.asked = 0

    def snapshot(self) -> Any:
        self.asked += 1
        return self._snapshots[self.asked % len(self._snapshots)]

    def set_window(self, seconds: float) -> None:
        pass

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ok": False, "error": "bench"}

    def stop(self) -> None:
        pass


def child(seconds: float, result_fd: int, still: bool) -> None:
    """The app on the pseudo-terminal; measures itself and writes the result to ``result_fd``."""
    from sgtop_tui.app import SgtopApp

    from tests.tui.scenes import healthy_tp8

    source = Cycle([healthy_tp8(0 if still else tick) for tick in range(240)])
    app = SgtopApp(source)

    def measure() -> None:
        time.sleep(WARM_UP_S)
        wall, cpu, asked = time.monotonic(), time.process_time(), source.asked
        time.sleep(seconds)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        out = {"cpu_share": cpu / wall, "snapshots_per_s": (source.asked - asked) / wall, "seconds": wall}
        os.write(result_fd, json.dumps(out).encode())
        app.call_from_thread(app.exit)

    threading.Thread(target=measure, daemon=True).start()
    app.run(mouse=False)


def run(seconds: float, width: int, height: int, still: bool = False) -> dict[str, float]:
    """One measurement; bytes a second that went to the terminal stand beside it."""
    read_fd, write_fd = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        os.close(read_fd)
        os.environ.setdefault("TERM", "xterm-256color")
        os.environ["COLORTERM"] = "truecolor"
        while os.get_terminal_size().columns != width:
            time.sleep(0.01)
        child(seconds, write_fd, still)
        os._exit(0)
    os.close(write_fd)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    written, result = 0, b""
    deadline = time.monotonic() + seconds + WARM_UP_S + 30
    try:
        while time.monotonic() < deadline:
            ready, _, _ = select.select([terminal, read_fd], [], [], 1.0)
            if terminal in ready:
                try:
                    written += len(os.read(terminal, 1 << 16))
                except OSError:  # the other end is closed: the app has ended
                    break
            if read_fd in ready and not result:
                result = os.read(read_fd, 1 << 16)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    if not result:
        raise SystemExit("tui_cost: the app ended without a result")
    out: dict[str, float] = json.loads(result)
    out["terminal_kb_per_s"] = written / 1024 / (out["seconds"] + WARM_UP_S)
    return out


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", default="200x60")
    parser.add_argument("--still", action="store_true", help="nothing on the screen changes: what is left is Textual's")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    result = run(args.seconds, width, height, args.still)
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"screen at {args.size}, 8 ranks, {result['snapshots_per_s']:.2f} snapshots/s: "
            f"{result['cpu_share'] * 100:.1f} % of one core, {result['terminal_kb_per_s']:.1f} KiB/s to the terminal"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
