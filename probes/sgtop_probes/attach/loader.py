"""Runs in the target: makes the agent's package importable from memory under an alias, and starts it.

This file's text travels in the payload; only tests import it. Standard library, Python 3.10 grammar. It runs on a
thread of its own, never on the scheduler's main thread.

The package's folders are entries of ``sys.path_importer_cache``, where Python's own finder looks for what a package's
``__path__`` names. No list of finders is touched: an import on another thread that walks ``sys.meta_path`` while
something is taken out of it would miss a finder. The loader is the ``__spec__.loader`` of every module that it made; an
agent that leaves calls its ``remove``.
"""

import importlib
import importlib.machinery
import importlib.util
import marshal
import sys
import threading
import time
from types import CodeType, ModuleType
from typing import Any

YIELD_S = 0.0003


class MemoryLoader:
    """Finder and loader in one. ``files``: path in the package → bytes; ``codes``: path → marshalled code object."""

    def __init__(self, alias: str, files: dict[str, bytes], codes: dict[str, bytes], magic: bytes) -> None:
        self.sgtop_alias = alias
        self._files = files
        self._codes = codes if magic == importlib.util.MAGIC_NUMBER else {}

    def _path(self, name: str) -> tuple[str, bool] | None:
        """(path in the package, whether it is a package) of module ``name``; None when it is not ours."""
        if name != self.sgtop_alias and not name.startswith(self.sgtop_alias + "."):
            return None
        inner = name[len(self.sgtop_alias) + 1 :].replace(".", "/")
        package = (inner + "/" if inner else "") + "__init__.py"
        if package in self._files:
            return package, True
        return (inner + ".py", False) if inner + ".py" in self._files else None

    def find_spec(self, name: str, target: object = None) -> Any:
        """As Python's finder asks; None when it is not ours."""
        found = self._path(name)
        if found is None:
            return None
        origin = self.root + found[0]
        spec = importlib.machinery.ModuleSpec(name, self, origin=origin, is_package=found[1])  # type: ignore[arg-type]
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(origin.rpartition("/")[0])
        spec.has_location = True
        spec.cached = None
        return spec

    @property
    def root(self) -> str:
        return "/<sgtop>/" + self.sgtop_alias + "/"

    def install(self) -> None:
        """Make the package importable, and import its top."""
        for path in self._files:
            if path.endswith("__init__.py"):
                sys.path_importer_cache[(self.root + path).rpartition("/")[0]] = self
        top = importlib.util.module_from_spec(self.find_spec(self.sgtop_alias))
        sys.modules[self.sgtop_alias] = top
        self.exec_module(top)

    def remove(self) -> list[ModuleType]:
        """Undo ``install``; the modules that were there. Idempotent."""
        for place in [p for p, finder in list(sys.path_importer_cache.items()) if finder is self]:
            sys.path_importer_cache.pop(place, None)
        mine = self.sgtop_alias + "."
        names = [n for n in list(sys.modules) if (n + ".").startswith(mine)]
        return [sys.modules.pop(n) for n in names if n in sys.modules]

    def create_module(self, spec: object) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The main thread asks for the GIL and gets it after 5 ms at the earliest, unless it is given up in between:
        # a scheduler would stand still for that long, more than once.
        time.sleep(YIELD_S)
        path, _package = self._path(module.__name__) or ("", False)
        ready = self._codes.get(path)
        if ready is not None:
            code: CodeType = marshal.loads(ready)
        else:
            code = compile(self._files[path], self.root + path, "exec", dont_inherit=True)
        exec(code, module.__dict__)

    def get_data(self, path: str) -> bytes:
        """Bytes of a file in the package: what ``pkgutil.get_data`` calls."""
        if not path.startswith(self.root):
            raise OSError(path)
        try:
            return self._files[path[len(self.root) :]]
        except KeyError:
            raise FileNotFoundError(path) from None

    def get_source(self, name: str) -> str | None:
        found = self._path(name)
        return self._files[found[0]].decode() if found else None


def start(payload: dict[str, Any], opts: dict[str, Any]) -> None:
    """Import the agent under a name of its own and call ``boot.start(opts)``.

    No two attaches share modules, not even of one version: an agent that leaves takes its modules along, and one that
    came at this moment would lose them. ``opts["alias"]`` tells the agent what it is called.
    """
    alias = f"{payload['alias']}_{threading.get_ident():x}_{time.monotonic_ns():x}"
    mine = MemoryLoader(alias, payload["files"], payload["codes"], payload["magic"])
    try:
        mine.install()
        boot = importlib.import_module(alias + ".boot")
        if time.monotonic_ns() < opts["deadline_ns"]:
            boot.start({**opts, "alias": alias})
            return
        raise TimeoutError("the agent was loaded too late")
    except BaseException:
        mine.remove()
        raise
