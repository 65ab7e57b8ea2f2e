"""A child that the scheduler forks has no agent: no hooks, none of its fds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, sys, threading, time
from sgtop_agent import boot
from tests.agent import fake_sglang as fake
from tests.agent.meeting import options, take, open_fds

s = fake.make("ingest")
children = []
def fork():
    pid = os.fork()
    if pid == 0:
        hooked = "run_batch" in vars(s) or type(s.request_receiver).__name__ == "Proxy"
        import gc
        watched = any("sgtop" in repr(c) for c in gc.callbacks)
        os._exit(0 if not hooked and not watched and open_fds() == before else 1)
    children.append(pid)

def client():
    global before
    time.sleep(0.1)
    before = open_fds()
    boot.start(options())
    c = take(); c.hello(); c.kind("hello")
    before += 1                      # our own end of the connection, which a child keeps
    s.submit(fork)
    fake.wait_for(lambda: children)
    code = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
    c.frames.clear(); c.kind("stat")  # the parent's agent goes on
    hooked = "run_batch" in vars(s)
    c.close()
    fake.wait_for(lambda: "run_batch" not in vars(s))
    s.gracefully_exit = True
    print("child", code, "parent hooked", hooked, flush=True)

fake.install(s.modes)
threading.Thread(target=client, daemon=True).start()
s.event_loop_overlap()
time.sleep(0.5)
"""


def test_a_forked_child_has_no_agent() -> None:
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert out.stdout.strip() == "child 0 parent hooked True", out.stderr
