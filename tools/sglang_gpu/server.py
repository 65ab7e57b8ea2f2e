"""Starts the bundled SGLang in a session of its own, so that it outlives the command that started it, and stops it.

About 70 s of a host's first start compiles kernels; 145 s to healthy for the 8B model, less later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.sglang_cpu.client import Client
from tools.sglang_gpu import model

STATE = Path("/tmp/sgtop-gpu")
"""Where the unpacked bundle, models, logs and pid files lie on the host."""
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast stays off: on a host whose GPUs others share it can put all of them out of service."""


class GpuServerError(RuntimeError):
    """The server did not come up; the text has the end of its log."""


def unpack(bundle: Path) -> Path:
    """The folder with the unpacked bundle."""
    site = STATE / "site"
    done = STATE / "site.done"
    if not done.exists():
        site.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "xJf", bundle, "-C", site], check=True)
        done.touch()
    return site


def prepare(site: Path, kind: str) -> Path:
    """The folder of the model of ``kind`` (tools.sglang_gpu.model), written when it is not there."""
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))
    folder = STATE / kind
    if not (folder / "generation_config.json").exists():
        model.write(kind, folder)
    return folder


def log(port: int) -> Path:
    """The log of the server on ``port``."""
    return STATE / f"{port}.log"


def start(
    site: Path,
    kind: str,
    port: int,
    *,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> int:
    """Start a model of ``kind`` (tools.sglang_gpu.model) and wait until it serves; the pid of its main process.

    Raises:
        GpuServerError: it ended, or was not healthy in time.
    """
    folder = prepare(site, kind)
    environment = {**os.environ, **NO_MULTICAST, "HF_HUB_OFFLINE": "1", **(env or {})}
    environment["PYTHONPATH"] = ":".join(filter(None, (str(site), (env or {}).get("PYTHONPATH"))))
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), "--load-format", "dummy"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enable-metrics", "--attention-backend", "triton"]
    command += ["--sampling-backend", "pytorch", "--grammar-backend", "none", "--mem-fraction-static", "0.6"]
    # Prefill graphs would take 80 s more; the largest captured decode batch is 64.
    command += ["--cuda-graph-max-bs", "64", "--disable-piecewise-cuda-graph", *flags]
    if "--tp-size" in flags:  # SGLang's own all-reduce may use NVLink multicast
        command.append("--disable-custom-all-reduce")
    with open(log(port), "wb") as out:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    _pid_file(port).write_text(str(server.pid))
    client = Client(f"http://127.0.0.1:{port}")
    end = time.monotonic() + timeout_s
    while not client.healthy():
        if server.poll() is not None or time.monotonic() > end:
            stop(port)
            tail = "\n".join(log(port).read_text(errors="replace").splitlines()[-60:])
            raise GpuServerError(f"the server is not healthy (exit status {server.poll()}):\n{tail}")
        time.sleep(1)
    return server.pid


def running(port: int) -> int | None:
    """The pid of a server that ``start`` left on ``port``; None when there is none."""
    try:
        pid = int(_pid_file(port).read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def stop(port: int) -> None:
    """End the server on ``port`` and all it started."""
    pid = running(port)
    if pid is None:
        return
    for number, wait_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            break
        end = time.monotonic() + wait_s
        while time.monotonic() < end and Path(f"/proc/{pid}").exists():
            time.sleep(0.2)
    _pid_file(port).unlink(missing_ok=True)


def _pid_file(port: int) -> Path:
    return STATE / f"{port}.pid"
