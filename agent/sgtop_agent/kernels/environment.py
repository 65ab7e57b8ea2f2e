"""What kernel tracing asks about the process it lives in. The one seam: tests put another ``Environment`` here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

_CUPTI = re.compile(r"/libcupti\.so(\.\d+)*$")


class Environment:
    """The own process. torch and libraries are only looked up where they already are, never imported or loaded."""

    def mapped(self) -> list[str]:
        """Paths of the files that are mapped here, each once. Source: /proc/self/maps."""
        out: dict[str, None] = {}
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
            for line in f:
                at = line.find("/")
                if at > 0:
                    out[line[at:].rstrip("\n")] = None
        return list(out)

    def libcupti(self) -> list[str]:
        """Paths of mapped copies of libcupti."""
        return [p for p in self.mapped() if _CUPTI.search(p.replace(" (deleted)", ""))]

    def environ(self) -> Mapping[str, str]:
        """The process's environment variables."""
        return os.environ

    def cuda_initialised(self) -> bool:
        """Whether torch has initialised CUDA here. Some versions of CUPTI crash in a process where none is."""
        torch = sys.modules.get("torch")
        try:
            return torch is not None and bool(torch.cuda.is_initialized())
        except Exception:
            return False

    def profiler_active(self) -> bool:
        """Whether torch's profiler runs. Its state is the thread's own: ask on the scheduler's main thread."""
        torch = sys.modules.get("torch")
        try:
            return torch is not None and bool(torch.autograd._profiler_enabled())
        except Exception:
            return False

    def graphs_used(self, scheduler: Any) -> bool:
        """Whether the server replays CUDA graphs; True when it cannot be told."""
        args = getattr(scheduler, "server_args", None)
        return not bool(getattr(args, "disable_cuda_graph", False))


current = Environment()
"""What a new ``KernelControl`` uses when it is given none."""
