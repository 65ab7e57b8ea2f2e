"""Imported on the CPU by SGLang 0.5.12.post1 and older, for the hierarchical cache; plain serving calls none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from sgl_kernel import missing


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("transfer_"):
        return missing(name)
    raise AttributeError(name)
