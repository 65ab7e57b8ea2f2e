"""Stand-in for sgl_kernel, whose PyPI wheel is CUDA-only.

With SGLANG_USE_CPU_ENGINE=1, SGLang imports some ``*_cpu`` helpers from it by name at module level. They serve
speculative decoding and KV moves; plain serving calls none. So any such name is a function that raises when it is
called. No torch operator is registered: SGLang sees no AMX kernels and takes its plain torch code paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def missing(name: str) -> Callable[..., NoReturn]:
    """A function that says which kernel is not there."""

    def call(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name} was called, but this machine has only a stand-in for sgl_kernel")

    call.__name__ = name
    return call


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.endswith("_cpu"):
        return missing(name)
    raise AttributeError(name)
