"""``sgtop run`` puts this folder first on PYTHONPATH: Python imports this module at every start below it.

It hands over to the sitecustomize that would have been imported without it, and waits for SGLang's scheduler module
to be imported: its ``run_scheduler_process`` then arms the agent in the process that it runs in. Every other
process is left as it is.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_SCHEDULER = "sglang.srt.managers.scheduler"


def _chain() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    others = [p for p in sys.path if os.path.abspath(p or os.getcwd()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _agent() -> ModuleType:
    """The agent's package, from beside this folder, without putting a path on the server's ``sys.path``."""
    package = sys.modules.get("sgtop_agent")
    if package is None:
        root = os.path.dirname(_HERE)
        spec = importlib.util.spec_from_file_location(
            "sgtop_agent", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"no package in {root}")
        package = importlib.util.module_from_spec(spec)
        sys.modules["sgtop_agent"] = package
        spec.loader.exec_module(package)
    return package


def _arm() -> None:
    try:
        _agent()
        from sgtop_agent import arm

        arm.allow_ptrace()
        arm.arm("run")
    except Exception as error:
        print(f"sgtop: the agent did not start: {error}", file=sys.stderr)


class _Loader:
    """Runs the real loader of the scheduler module, then wraps its main function."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._real.exec_module(module)
        original = getattr(module, "run_scheduler_process", None)
        if original is None:
            return

        @functools.wraps(original)
        def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
            _arm()
            return original(*args, **kwargs)

        module.run_scheduler_process = run_scheduler_process


class _Finder:
    """First on ``sys.meta_path`` until the scheduler module was found once."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _SCHEDULER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            wrapped: Any = _Loader(spec.loader)
            spec.loader = wrapped
        return spec


try:
    sys.meta_path.insert(0, _Finder())
except Exception:
    pass  # a server without sgtop is better than none
_chain()
