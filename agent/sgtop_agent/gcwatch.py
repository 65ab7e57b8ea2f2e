"""Garbage collections of the scheduler process, from ``gc.callbacks``."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

from .patches import Patches
from .rows import Rows

WIDTH = 5


class GcWatch:
    """One row a collection: generation, begin, end, on the main thread or not, objects freed."""

    def __init__(self, rows: Rows, main_ident: int, patches: Patches) -> None:
        self._rows, self._main, self._patches = rows, main_ident, patches
        self._began: dict[int, int] = {}
        self._callback: Any = None

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        try:
            t = time.monotonic_ns()
            ident = threading.get_ident()
            if phase == "start":
                self._began[ident] = t
            else:
                t0 = self._began.pop(ident, -1)
                if t0 >= 0:
                    main = 1 if ident == self._main else 0
                    self._rows.add((info["generation"], t0, t, main, info["collected"]))
        except BaseException as error:
            self.close()
            self._patches.fail("gc", error)

    def open(self) -> None:
        """Begin to watch."""
        self._callback = self._on_gc
        gc.callbacks.append(self._callback)

    def close(self) -> None:
        """Stop. Idempotent."""
        try:
            gc.callbacks.remove(self._callback)
        except ValueError:
            pass
        self._callback = None  # a bound method of ours: no cycle may wait for a collection
