"""``sgtop run -- CMD``: start a server with the agent dormant in its schedulers, through PYTHONPATH.

A folder of the agent's package, with a ``sitecustomize.py`` that chains to an existing one, comes first on PYTHONPATH.
Nothing else of the environment changes, and ``sgtop run`` is replaced by the command: same pid, same exit code.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from .attach.payload import agent_folder
from .errors import ProbeError

NOT_FOUND = 127
NOT_EXECUTABLE = 126


def environment(environ: Mapping[str, str], agent: Path | None = None) -> dict[str, str]:
    """``environ`` with the agent's folder first on PYTHONPATH (once, however often this is nested).

    Raises:
        ProbeError: this installation has no agent.
    """
    try:
        folder = (agent or agent_folder()) / "run_site"
    except FileNotFoundError as e:
        raise ProbeError("the agent is not installed", str(e), "pip install sgtop-agent") from None
    if not (folder / "sitecustomize.py").is_file():
        raise ProbeError("the agent is not installed completely", f"{folder} is missing", "pip install sgtop-agent")
    rest = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(folder)]
    return {**environ, "PYTHONPATH": os.pathsep.join([str(folder), *rest])}


def warning(command: Sequence[str]) -> str | None:
    """What keeps the agent out although the server starts: an interpreter that ignores PYTHONPATH or site."""
    if not command or not os.path.basename(command[0]).startswith("python"):
        return None
    for arg in command[1:]:
        if not arg.startswith("-") or arg in ("-m", "-c"):
            break
        if re.fullmatch(r"-[A-Za-z]*[IES][A-Za-z]*", arg) and not arg.startswith(("-W", "-X")):
            return f"{command[0]} {arg} ignores PYTHONPATH or sitecustomize, so no agent will start"
    return None


def execute(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Become ``command``. Returns only by raising.

    Raises:
        ProbeError: there is no such command, or it cannot be executed.
    """
    path = shutil.which(command[0], path=environ.get("PATH"))
    if path is None:
        if os.path.exists(command[0]):
            raise ProbeError(f"{command[0]} cannot be executed", "", f"chmod +x {command[0]}", NOT_EXECUTABLE)
        raise ProbeError(f"there is no command {command[0]}", "it is not on PATH", exit_code=NOT_FOUND)
    env = environment(environ)
    try:
        os.execve(path, list(command), env)
    except OSError as e:
        raise ProbeError(f"{command[0]} cannot be executed", e.strerror or str(e), exit_code=NOT_EXECUTABLE) from None
