"""The tracer: a short-lived child in a session of its own, because its death inside the window is the target's death.

Between the first borrowed register and the last one put back (about half a millisecond) the target depends on this
process. So it takes no signal, is not in sgtop's process group (Ctrl-C, a closed terminal), is spared by the OOM killer
where allowed, runs with real-time priority for that moment where allowed, and has worked out every address before.

``main`` reads a request (one line of JSON, then raw bytes) from stdin and writes one line of JSON to stdout. It starts
with ``python -I -S`` and imports nothing but the standard library and its neighbours here.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import interpreter, pending
from .ptrace import TraceError

CHILD_TIMEOUT_S = 30.0


class TracerFailed(Exception):
    """What the tracer child reported. ``errno`` is 0 unless the kernel refused."""

    def __init__(self, text: str, kind: str, error: int = 0) -> None:
        super().__init__(text)
        self.kind, self.errno = kind, error


def _prefer_us() -> None:
    """Be hard to interrupt, as far as this user may; none of it is needed."""
    try:
        Path("/proc/self/oom_score_adj").write_text("-1000")
    except OSError:
        pass
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return
    except OSError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except OSError:
        pass


def _work(request: dict[str, Any], data: bytes) -> dict[str, Any]:
    if len(data) != request["bytes"]:
        # sgtop was killed while it handed the agent over. A page that is shorter than its source believes would be
        # unmapped together with the server's memory behind it: measured, that kills the server.
        return {"error": "sgtop went away before the whole agent was handed over", "kind": "failed", "errno": 0}
    source, blob = data[: request["source"]], data[request["source"] :]
    gc.disable()
    _prefer_us()
    try:
        life = pending.Life(request["seconds"], request["offset_ns"])
        done = pending.queue(request["pid"], pending.Page(source, blob), request["thread"], life)
    except TraceError as e:
        return {"error": str(e), "kind": e.kind, "errno": 0}
    except interpreter.NoInterpreter as e:
        return {"error": str(e), "kind": "unsupported", "errno": 0}
    except OSError as e:
        kind = {errno.ESRCH: "gone", errno.ENOENT: "gone", errno.EPERM: "permission", errno.EACCES: "permission"}
        return {"error": str(e), "kind": kind.get(e.errno or 0, "failed"), "errno": e.errno or 0}
    return asdict(done)


def main() -> None:
    """Body of the child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    request = json.loads(sys.stdin.buffer.readline())
    answer = _work(request, sys.stdin.buffer.read())
    try:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    except OSError:
        pass  # sgtop has gone; the agent's deadline ends what was begun


def run(pid: int, source: bytes, blob: bytes, thread: str = "auto", life: pending.Life | None = None) -> pending.Queued:
    """Queue ``source`` in process ``pid`` from a child of this process.

    Raises:
        TracerFailed: the child's reason.
    """
    home = Path(__file__).resolve().parents[2]
    code = f"import sys; sys.path.insert(0, {str(home)!r}); from {__name__} import main; main()"
    size = len(source) + len(blob)
    request = {"pid": pid, "source": len(source), "bytes": size, "thread": thread, **asdict(life or pending.Life())}
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as e:
        # sgtop itself runs, but this user may not start its Python again (one below another user's home).
        raise TracerFailed(f"the tracer child cannot be started: {sys.executable}: {e.strerror}", "failed") from None
    try:
        out, err = child.communicate(json.dumps(request).encode() + b"\n" + source + blob, CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # Never killed: it may be inside its window. Its own limits end it.
        raise TracerFailed("the tracer child does not answer", "failed") from None
    if not out:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        how = f"was killed by signal {-child.returncode}" if child.returncode < 0 else f"ended: {last[0]}"
        raise TracerFailed(f"the tracer child {how}", "failed")
    answer = json.loads(out)
    if "error" in answer:
        raise TracerFailed(answer["error"], answer["kind"], answer["errno"])
    return pending.Queued(**{**answer, "page": tuple(answer["page"]), "python": tuple(answer["python"])})
