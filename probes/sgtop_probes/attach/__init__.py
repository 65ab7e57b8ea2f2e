"""Ways into a running scheduler process: plugin socket, PEP 768, pending call.

``open_rank`` walks them from the best to the last. The package's ``__init__`` imports nothing: the tracer child
starts with ``python -I -S`` and takes only the few standard-library modules of this folder that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ladder import AttachOptions, open_rank

__all__ = ["AttachOptions", "open_rank"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import ladder

        return getattr(ladder, name)
    raise AttributeError(name)
