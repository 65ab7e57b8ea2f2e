"""A scheduler on the CPU that seems to have a GPU: each forward "launches" kernels on the mock libcupti.

An SGLang plugin; with this folder on PYTHONPATH and ``SGTOP_PRETENCE`` naming the mock library, it is in schedulers.
Kernel tracing asks its ``environment`` module whether CUDA is initialised; a real CPU server says no. An import hook
puts another ``Environment`` there, for whatever copy of the agent comes: the guard itself is as in production.

What it launched is told through ``SGTOP_PRETENCE_FOLDER/PID.json`` on each line written into ``PID.do``; a line is
a call of the mock, ``name arg …``, or empty.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

KERNELS = {"EXTEND": 30, "DECODE": 50}
STATS = ("calls", "forbidden", "emitted", "no_buffer", "dirty", "registered", "flushes", "forced", "returned",
         "requested", "overflow")  # fmt: skip


class _Seam(importlib.abc.MetaPathFinder):
    """Finds nothing itself; wraps the loader of the agent's ``environment`` module, whatever the package's alias."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.endswith(".kernels.environment"):
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)

        class Pretended(module.Environment):  # type: ignore[name-defined, misc]
            def cuda_initialised(self) -> bool:
                return True

        module.current = Pretended()  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def load() -> None:
    """Called by SGLang in every process that loads plugins; only a scheduler ever runs a forward."""
    library = os.environ.get("SGTOP_PRETENCE")
    if not library:
        return
    from sglang.srt.model_executor.model_runner import ModelRunner

    sys.meta_path.insert(0, _Seam())
    launched: dict[str, int] = {}
    cupti: list[ctypes.CDLL] = []
    forward = ModelRunner.forward

    def launching(runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not cupti:
            cupti.append(_mock(library))
            threading.Thread(target=_serve, args=(cupti[0], launched), name="pretence", daemon=True).start()
        mode = forward_batch.forward_mode.name
        n = KERNELS.get(mode, 10)
        lib = cupti[0]
        lib.mock_launch(1, 7, 0, 2, 400, 100, 0)
        lib.mock_launch(10, 7, 0, n, 3_000, 500, 4 if mode == "DECODE" else 0)
        out = forward(runner, forward_batch, *args, **kwargs)
        launched[mode] = launched.get(mode, 0) + n
        launched["forwards " + mode] = launched.get("forwards " + mode, 0) + 1
        return out

    ModelRunner.forward = launching


def _mock(library: str) -> ctypes.CDLL:
    lib = ctypes.CDLL(library)
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    lib.mock_launch.argtypes = [u32, u32, u64, u32, u64, u64, u32]
    lib.mock_launch.restype = lib.mock_stat.restype = lib.mock_serial.restype = u64
    layout = os.environ.get("SGTOP_PRETENCE_LAYOUT")
    if layout:
        lib.mock_configure(*map(int, layout.split()))
    return lib


def _serve(lib: ctypes.CDLL, launched: dict[str, int]) -> None:
    folder = Path(os.environ["SGTOP_PRETENCE_FOLDER"])
    ask, answer = folder / f"{os.getpid()}.do", folder / f"{os.getpid()}.json"
    os.mkfifo(ask)
    while True:
        with open(ask) as lines:
            for line in lines:
                words = line.split()
                result = getattr(lib, words[0])(*map(int, words[1:])) if words else None
                part = answer.with_suffix(".part")
                part.write_text(json.dumps({
                    "result": result, "launched": launched, "enabled": [k for k in range(64) if lib.mock_enabled(k)],
                    "mock": {name: lib.mock_stat(i) for i, name in enumerate(STATS)},
                    "serial": {str(k): lib.mock_serial(k) for k in (1, 2, 10)},
                }))  # fmt: skip
                part.rename(answer)
