"""Single kernels in a recording: a table of columns a block, and the names that the agent told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgtop_agent.wire import Frame

from sgtop_core.kernels.names import NameTable
from sgtop_core.model.arrays import I64

KIND, TABLE = "raw", "kernel"
COLUMNS: dict[str, str] = {
    "start": "t0",
    "end": "t1",
    "name": "name",
    "stream": "stream",
    "graph": "graph",
    "bytes": "bytes",
}
"""Column of the tracker → column of the recording. Times are CLOCK_MONOTONIC ns, unrounded."""


def kernels_frame(columns: Mapping[str, I64]) -> Frame:
    """A block of kernels, copies and sets as a frame."""
    c = {there: memoryview(columns[here].astype("<i8").tobytes()) for here, there in COLUMNS.items()}
    return {"k": KIND, "e": TABLE, "n": len(columns["start"]), "c": c}


class Names:
    """Kernel names of each rank, from the agents' replies in a recording."""

    def __init__(self) -> None:
        self._tables: dict[str, NameTable] = {}

    def take(self, source: str, frame: Mapping[str, Any]) -> None:
        """Look at a reply."""
        result = frame.get("result")
        names = result.get("names") if isinstance(result, Mapping) else None
        if isinstance(names, Mapping):
            table = self._tables.setdefault(source, NameTable())
            table.answer({str(k): v if isinstance(v, str) else None for k, v in names.items()})

    def get(self, source: str, address: int) -> str:
        """The short name; an address where nobody told it."""
        table = self._tables.setdefault(source, NameTable())
        table.see([address] if address < 0 else ())
        return table.get(address).short
