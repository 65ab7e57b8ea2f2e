"""What the command line of an SGLang server says: model, port, parallelism. Names of arguments: srt/server_args.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("--model-path", "--model"),
    "served_name": ("--served-model-name",),
    "host": ("--host",),
    "port": ("--port",),
    "tp": ("--tensor-parallel-size", "--tp-size", "--tp"),
    "pp": ("--pipeline-parallel-size", "--pp-size", "--pp"),
    "dp": ("--data-parallel-size", "--dp-size", "--dp"),
    "ep": ("--expert-parallel-size", "--ep-size", "--ep"),
    "nnodes": ("--nnodes",),
    "node_rank": ("--node-rank",),
}
_NUMBERS = ("port", "tp", "pp", "dp", "ep", "nnodes", "node_rank")


@dataclass(frozen=True)
class LaunchArgs:
    """Values given on the command line; None where it does not say (a default, a config file, another launcher)."""

    model: str | None = None
    served_name: str | None = None
    host: str | None = None
    port: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    dp_attention: bool = False
    tls: bool = False


def is_launch(args: Sequence[str]) -> bool:
    """Whether this is the command line of an SGLang server's main process.

    ``python -m sglang.launch_server``, ``python …/sglang/launch_server.py``, ``sglang serve``; not a container client
    or profiler that merely carries such a line.
    """
    if not args or not os.path.basename(args[0]).startswith(("python", "sglang", "pypy")):
        return False
    for i, arg in enumerate(args[:-1]):
        if arg == "-m" and args[i + 1] in ("sglang.launch_server", "sglang.cli.main"):
            return args[i + 1] == "sglang.launch_server" or "serve" in args[i + 2 : i + 3]
    if any(a.endswith("sglang/launch_server.py") for a in args[1:3]):
        return True
    return any(os.path.basename(a) == "sglang" and "serve" in args[i + 1 : i + 2] for i, a in enumerate(args[:2]))


def parse_launch(args: Sequence[str]) -> LaunchArgs:
    """Read a command line; what is not there, or is no number where one belongs, is None."""
    values: dict[str, str | int | None] = {}
    for field, names in _NAMES.items():
        text = _value(args, names)
        if field in _NUMBERS:
            values[field] = int(text) if text is not None and text.isdigit() else None
        else:
            values[field] = text
    return LaunchArgs(
        **values,  # type: ignore[arg-type]
        dp_attention="--enable-dp-attention" in args,
        tls=_value(args, ("--ssl-certfile",)) is not None,
    )


def _value(args: Sequence[str], names: Sequence[str]) -> str | None:
    found = None
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names:  # the last one wins, as in argparse
            found = value if equals else (args[i + 1] if i + 1 < len(args) else None)
    return found
