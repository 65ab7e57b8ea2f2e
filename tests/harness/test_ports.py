"""Two runs on one machine never choose the same port, although a server binds it long after it was chosen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools.sglang_cpu.server import ServerError, free_port

REPO = Path(__file__).parents[2]


def test_a_port_is_chosen_once() -> None:
    ours = free_port(31650, 31699)
    ask = "from tools.sglang_cpu.server import free_port; print(free_port(31650, 31699), free_port(31650, 31699))"
    theirs = subprocess.run(
        [sys.executable, "-c", ask],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    assert len({ours, *map(int, theirs.stdout.split())}) == 3


def test_no_port_is_left() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(ServerError, match=f"no free port between {port} and {port}"):
            free_port(port, port)
