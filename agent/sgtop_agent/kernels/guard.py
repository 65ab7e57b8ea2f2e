"""May kernels be traced in this process at all? Each answer is a sentence for the user, or None for yes."""

from __future__ import annotations

import re
from typing import Any

from .environment import Environment

MIN_VERSION_WITH_GRAPHS = 24
"""``cuptiGetVersion()`` of CUDA 12.6; older ones are known to corrupt or hang CUDA graphs when enabled late."""

_INJECTED = re.compile(
    r"/(libToolsInjection|libcuinj|libparcagpu|libgpuprobe|libInterceptorInjection|libnvperf_injection)[^/]*$"
)


def other_tracer(env: Environment) -> str | None:
    """Another tool that owns CUPTI here: only one can have its buffers."""
    environ = env.environ()
    if environ.get("CUDA_INJECTION64_PATH"):
        return (
            f"another tool is injected into CUDA (CUDA_INJECTION64_PATH={environ['CUDA_INJECTION64_PATH']}); "
            "start the server without it"
        )
    nsys = next((k for k in environ if k.startswith("NSYS_")), None)
    if nsys:
        return f"the server runs under Nsight Systems ({nsys} is set); start it without nsys"
    for path in env.mapped():
        if _INJECTED.search(path):
            return f"another GPU tracer is loaded in the server: {path}"
    return None


def library(env: Environment) -> tuple[str | None, str | None]:
    """(path of the one mapped libcupti, None) or (None, why there is none to use)."""
    if not env.cuda_initialised():
        return None, "CUDA is not initialised in the scheduler (a server on the CPU has no GPU kernels)"
    paths = env.libcupti()
    if not paths:
        return None, "libcupti is not loaded in the scheduler: this torch was built without its profiler"
    if len(paths) > 1:
        return None, "several copies of libcupti are loaded in the scheduler: " + ", ".join(paths)
    return paths[0], None


def version(number: int, env: Environment, scheduler: Any) -> str | None:
    """Whether this CUPTI may be enabled late."""
    if number < MIN_VERSION_WITH_GRAPHS and env.graphs_used(scheduler):
        return (
            f"CUPTI {number} (before CUDA 12.6) beside CUDA graphs is known to hang or crash servers; "
            "use CUDA 12.6 or newer, or start the server with --disable-cuda-graph"
        )
    if number < 18:
        return f"CUPTI {number} is older than CUDA 12.0: its record layouts are not known to sgtop"
    return None
