"""Build hook: compile the native helper into the package, and mark the wheel with the platform it is for.

Without a compiler the package is built all the same, pure Python: kernel tracing then says that it is off and why.
``SGTOP_WHEEL_PLATFORM`` (such as ``manylinux_2_17_x86_64``) names the platform tag of release wheels.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HELPER = "sgtop_agent/kernels/sgring.so"


class NativeHelper(BuildHookInterface):  # type: ignore[type-arg]
    """Runs for wheels and editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the helper to the wheel, or say why there is none."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("sgtop_native_build", root / "native" / "build.py")
        assert spec is not None
        assert spec.loader is not None
        native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)
        try:
            native.build(root / HELPER)
        except native.CannotBuild as e:
            (root / HELPER).unlink(missing_ok=True)  # a stale one must not travel in a wheel for every platform
            self.app.display_warning(f"sgtop-agent without its native helper, kernel tracing will be off: {e}")
            return
        build_data["pure_python"] = False
        tag = os.environ.get("SGTOP_WHEEL_PLATFORM", f"linux_{platform.machine()}")
        build_data["tag"] = f"py3-none-{tag}"
