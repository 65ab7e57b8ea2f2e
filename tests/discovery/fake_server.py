"""A process tree that looks like an SGLang server, made of ``sleep`` and sockets: for tests of discovery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# What runs as ``python -m sglang.launch_server``: it listens (when LISTEN says where) and has titled children.
MAIN = '''
import json, os, socket, subprocess, sys, time

CHILD = """
import json, subprocess, sys, time
for title in json.loads(sys.argv[-1]):
    subprocess.Popen([title, "600"], executable="/bin/sleep", stdout=subprocess.DEVNULL)
print("READY", flush=True)
time.sleep(600)
"""

plan = json.loads(os.environ["FAKE_PLAN"])
for title, children in plan["tree"].items():
    if children:
        words = [title, "-c", CHILD, json.dumps(children)]
        child = subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE)
        child.stdout.readline()
    else:
        subprocess.Popen([title, "600"], executable="/bin/sleep", stdout=subprocess.DEVNULL)
held = []
for family, host, port in plan["listen"]:
    s = socket.socket(getattr(socket, family))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, port))
    s.listen()
    held.append(s)
print("READY", flush=True)
time.sleep(600)
'''


def folder(place: Path) -> Path:
    """A package ``sglang`` with nothing in it but the fake ``launch_server``."""
    package = place / "sglang"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(MAIN)
    return place


@contextmanager
def server(
    place: Path,
    args: Sequence[str],
    tree: dict[str, list[str]],
    listen: Sequence[tuple[str, str, int]] = (),
    prefix: Sequence[str] = (),
) -> Iterator[int]:
    """Start one; gives the pid of its main process. ``tree``: title → titles of its children."""
    import json

    env = {**os.environ, "PYTHONPATH": str(folder(place)), "FAKE_PLAN": json.dumps({"tree": tree, "listen": listen})}
    words = [*prefix, sys.executable, "-m", "sglang.launch_server", *args]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env=env, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line == "READY", f"the fake server did not start: {line!r}"
        time.sleep(0.05)  # the children's command lines are their own now
        yield main_of(process.pid) if prefix else process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def main_of(pid: int) -> int:
    """The Python below unshare and the like."""
    while "sglang.launch_server" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[3:]:
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid
