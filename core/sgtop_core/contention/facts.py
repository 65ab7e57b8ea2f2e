"""What sgtop knows of the host beside the samples: which threads are ranks, whose processes, where they may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sgtop_core.model.snapshot import Place


@dataclass(frozen=True, slots=True)
class RankIds:
    """A rank's process and main thread in sgtop's pid namespace, and its GPU's index inside the process (or None)."""

    pid: int
    tid: int
    gpu_index: int | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Sent when something of it changes."""

    ranks: Mapping[str, RankIds] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    server_pids: tuple[int, ...] = ()
    """All processes of the server."""
    sgtop_pids: tuple[int, ...] = ()
    """This sgtop, and what it started."""
    kernel_pids: tuple[int, ...] = ()
    """Kernel threads among those that took the CPU."""
    other_sgtop_pids: tuple[int, ...] = ()
    """Other sgtops among those that took the CPU."""
    ended_pids: tuple[int, ...] = ()
    """Processes that have ended, of those that took the CPU in the last seconds."""
    needs: str = ""
    """What the next better level of scheduling samples would need."""

    def kind(self, pid: int) -> str:
        """``server``, ``sgtop``, ``another-sgtop``, ``kernel`` or ``other``."""
        if pid in self.server_pids:
            return "server"
        if pid in self.sgtop_pids:
            return "sgtop"
        if pid in self.other_sgtop_pids:
            return "another-sgtop"
        return "kernel" if pid in self.kernel_pids else "other"
