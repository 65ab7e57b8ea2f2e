"""``bundle OUT.txz`` here; ``start BUNDLE [--model …] [--port …]`` and ``stop`` on the GPU host."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.sglang_gpu import bundle, server
from tools.sglang_gpu.model import MODELS


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.sglang_gpu", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("bundle", help="make the archive; needs pip, strip and xz")
    one.add_argument("out", type=Path)
    two = commands.add_parser("start", help="unpack it and start a server that outlives this command")
    two.add_argument("bundle", type=Path)
    two.add_argument("--model", choices=sorted(MODELS), default="qwen3-8b")
    two.add_argument("--port", type=int, default=30000)
    two.add_argument("flags", nargs="*", help="more flags for SGLang, after --")
    three = commands.add_parser("stop", help="end that server")
    three.add_argument("--port", type=int, default=30000)
    given = parser.parse_args()
    try:
        if given.what == "bundle":
            bundle.build(given.out)
            print(f"{given.out}: {given.out.stat().st_size / 1e6:.0f} MB")
        elif given.what == "start":
            pid = server.start(server.unpack(given.bundle), given.model, given.port, flags=given.flags)
            print(f"http://127.0.0.1:{given.port}, main process {pid}, log {server.log(given.port)}")
        else:
            server.stop(given.port)
    except server.GpuServerError as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
