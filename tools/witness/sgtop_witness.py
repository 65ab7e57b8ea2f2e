"""A witness in the scheduler that is there with and without sgtop: when each run_batch ran, and what the process holds.

An SGLang plugin; with this folder on the server's PYTHONPATH and ``SGTOP_WITNESS=FOLDER`` in its environment, each
scheduler writes ``FOLDER/PID.steps``, and answers every line written into the FIFO ``FOLDER/PID.ask`` with
``FOLDER/PID.look``. It shares no code with the agent, so that it can testify about it.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

ROWS = 1 << 20
ROW = struct.Struct("<5q")
"""forward_ct, entry and return of run_batch (CLOCK_MONOTONIC ns), ForwardMode number, requests in the batch."""
HEAD = struct.Struct("<q")
"""Rows written so far; the file keeps the last ROWS of them, row i at (i mod ROWS)."""
SIZE = ROW.size + ROWS * ROW.size
MARK = "sgtop"
"""What stands in the name of every module, thread and type of sgtop's (this witness's own apart)."""


def load() -> None:
    """Called by SGLang in every process that loads plugins; only a scheduler ever runs a batch."""
    folder = os.environ.get("SGTOP_WITNESS")
    if not folder:
        return
    from sglang.srt.managers.scheduler import Scheduler

    Scheduler.run_batch = _watched(Scheduler.run_batch, Path(folder))


def _watched(run_batch: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    now, write, head = time.monotonic_ns, ROW.pack_into, HEAD.pack_into
    out: mmap.mmap | None = None
    n = 0

    def watched(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal out, n
        mode, size = int(batch.forward_mode), len(batch.reqs)
        t0 = now()
        result = run_batch(scheduler, batch, *args, **kwargs)
        t1 = now()
        if out is None:
            out = _open(folder / f"{os.getpid()}.steps")
            _answer_questions(scheduler, folder)
        write(out, ROW.size + n % ROWS * ROW.size, scheduler.forward_ct, t0, t1, mode, size)
        n += 1
        head(out, 0, n)
        return result

    return watched


def _open(path: Path) -> mmap.mmap:
    with open(path, "w+b") as file:
        file.truncate(SIZE)
        return mmap.mmap(file.fileno(), SIZE)


def _answer_questions(scheduler: Any, folder: Path) -> None:
    ask, answer = folder / f"{os.getpid()}.ask", folder / f"{os.getpid()}.look"
    os.mkfifo(ask)

    def serve() -> None:
        while True:
            with open(ask) as questions:  # waits, without the interpreter lock
                for _ in questions:
                    part = answer.with_suffix(".part")
                    part.write_text(json.dumps(look(scheduler)))
                    part.rename(answer)

    threading.Thread(target=serve, name="witness", daemon=True).start()


def look(scheduler: Any) -> dict[str, Any]:
    """What sgtop could have left in this process, by name; garbage that is only not collected yet does not count."""
    gc.collect()
    worker = getattr(scheduler, "tp_worker", None)
    owners = {"scheduler": scheduler, "worker": worker, "runner": getattr(worker, "model_runner", None)}
    owners |= {f"scheduler.{name}": value for name, value in vars(scheduler).items() if _is_sglang(value)}
    owners |= {f"class {type(owner).__qualname__}": type(owner) for owner in list(owners.values()) if owner is not None}
    return {
        "attributes": sorted(
            f"{name}.{key}" for name, owner in owners.items() for key in getattr(owner, "__dict__", ())
        ),
        "modules": sorted(sys.modules),
        "finders": [_name(f) for f in sys.meta_path]
        + [place for place in list(sys.path_importer_cache) if place.startswith("/<")],
        "path_hooks": len(sys.path_hooks),
        "gc_callbacks": len(gc.callbacks),
        "threads": sorted(t.name for t in threading.enumerate()),
        "objects": Counter(name for name in map(_sgtop_name, gc.get_objects()) if name),
    }


def _is_sglang(value: object) -> bool:
    # Batches come and go with every step.
    kind = type(value)
    return kind.__module__.startswith("sglang.") and kind.__name__ != "ScheduleBatch" and hasattr(value, "__dict__")


def _sgtop_name(value: object) -> str:
    """Names the type of an object of sgtop's, or the function; empty for all others."""
    # Not by attribute access on the object itself: some compute things when they are asked.
    module: object = type(value).__dict__.get("__module__")
    name = type(value).__qualname__
    if type(value) is FunctionType:
        module, name = value.__module__, value.__qualname__ + "()"
    return f"{module}.{name}" if isinstance(module, str) and MARK in module and module != __name__ else ""


def _name(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else type(value).__qualname__
