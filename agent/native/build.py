"""Compile the native helper: ``python agent/native/build.py [DESTINATION]``.

The build hook of the ``sgtop-agent`` distribution runs this at install; so do tests. Any C compiler for C11 will do.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "sgring.c"
MACHINES = ("x86_64", "aarch64")
FLAGS = (
    "-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
    "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,--build-id=none",
)  # fmt: skip


class CannotBuild(RuntimeError):
    """No helper for this machine; the text says why and what would mend it."""


def compiler() -> str:
    """The C compiler: ``$CC``, else cc, gcc or clang.

    Raises:
        CannotBuild: there is none.
    """
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    raise CannotBuild("no C compiler found (cc, gcc or clang); install one, or a wheel for this platform")


def build(destination: Path) -> Path:
    """Compile sgring.c to ``destination`` and return it. The file appears at once, complete.

    Raises:
        CannotBuild: another system than Linux on x86-64 or aarch64, no compiler, or what the compiler said.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise CannotBuild(f"kernel tracing needs Linux on {' or '.join(MACHINES)}, this is {platform.machine()}")
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(f".{destination.name}.{os.getpid()}")
    command = [*compiler().split(), *FLAGS, "-o", str(part), str(SOURCE), "-lpthread"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise CannotBuild(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        part.replace(destination)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise CannotBuild(f"{command[0]} did not run: {e}")
    finally:
        part.unlink(missing_ok=True)
    return destination


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "sgtop_agent" / "kernels" / "sgring.so"
    try:
        print(build(target))
    except CannotBuild as e:
        sys.exit(f"sgring: {e}")
