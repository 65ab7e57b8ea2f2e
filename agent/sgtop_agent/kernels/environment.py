"""What kernel tracing asks about the process it lives in. The one seam: tests put another ``Environment`` here."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from .. import versions

_LIBRARY = re.compile(rb"(/[^\n]*\.so[^\n]*)$", re.MULTILINE)
_PIECE, _PAUSE_S = 16384, 0.0002
_CUPTI = re.compile(r"/libcupti\.so(\.\d+)*$")


class Environment:
    """The own process. torch and libraries are only looked up where they already are, never imported or loaded."""

    def mapped(self) -> list[str]:
        """Paths of the libraries that are mapped here, each once. Source: /proc/self/maps.

        A torch process has thousands of lines there. They are taken in pieces with a pause after each, so that the
        scheduler never waits for the GIL.
        """
        out: dict[bytes, None] = {}
        rest = b""
        fd = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while piece := os.read(fd, _PIECE):
                lines, _, rest = (rest + piece).rpartition(b"\n")
                out.update(dict.fromkeys(_LIBRARY.findall(lines)))
                time.sleep(_PAUSE_S)
        finally:
            os.close(fd)
        return [path.decode("utf-8", "replace") for path in out]

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
        """Whether the server replays CUDA graphs; True when it cannot be told.

        The runners are asked: the server's arguments say it in another way in each version.
        """
        try:
            target = versions.target_runner(scheduler)
            if target is None:
                return True
            runners = [target, *versions.draft_runners(scheduler)]
            graphs = [versions.decode_graph_runner(r) or versions.prefill_graph_runner(r) for r in runners]
            return any(g is not None for g in graphs) or bool(versions.draft_graph_runners(scheduler))
        except Exception:
            return True


current = Environment()
"""What a new ``KernelControl`` uses when it is given none."""
