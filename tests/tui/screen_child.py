"""Run in a pseudo-terminal by test_terminal.py: the real app on a fake source; says at the end that it was stopped."""

from __future__ import annotations

import argparse
import os
import sys

from sgtop_tui.cli import main, screen

from tests.tui.app_driver import FakeSource
from tests.tui.scenes import SCENES, eager_and_stolen


def run(args: argparse.Namespace) -> int:
    """What ``screen.run`` does, on a source without a server."""
    source = FakeSource(eager_and_stolen(0))
    if os.environ.get("CHILD_FAILS"):
        calls: list[int] = []

        def failing() -> object:
            calls.append(1)
            if len(calls) > 2:
                raise RuntimeError("the session broke")
            return SCENES["decode-bound"](0)

        source.snapshot = failing  # type: ignore[method-assign,assignment]
    if os.environ.get("CHILD_BREAKS"):
        from sgtop_tui.app import SgtopApp

        def broken(self: SgtopApp) -> None:
            raise ZeroDivisionError("by zero")

        SgtopApp.action_help = broken  # type: ignore[method-assign]
    try:
        return screen.show(source, args)
    finally:
        source.stop()
        print(f"STOPPED {source.stopped}", file=sys.stderr)


if __name__ == "__main__":
    screen.run = run
    code = main(sys.argv[1:])
    print(f"CODE {code}", file=sys.stderr)
    sys.exit(code)
