"""What may be imported where: headless commands never load Textual, the agent never leaves the standard library."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sgtop_tui.cli as cli

ROOT = Path(__file__).parents[2]

HEADLESS: dict[str, list[str]] = {
    "version": ["--version"],
    "help": ["--help"],
    "usage": ["--nonsense"],
    "once": ["--once", "--attach", ":1"],
    "once json": ["--once", "--json", "--attach", ":1"],
    "json": ["--json", "--for", "1s", "--attach", ":1"],
    "no terminal": ["--attach", ":1"],
    **{name: [name, "--help"] for name in cli.COMMANDS},
    "list": ["list"],
    "schema": ["schema"],
    "doctor": ["doctor", "--attach", ":1"],
}

PROBE = """
import sys
from sgtop_tui.cli import main
main({argv!r})
loaded = sorted({{m.split(".")[0] for m in sys.modules}} & {{"textual"}})
print("LOADED", loaded, file=sys.stderr)
"""


def _python(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / d) for d in ("agent", "probes", "core", "tui"))}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("name", HEADLESS)
def test_headless_commands_never_load_textual(name: str) -> None:
    done = _python(PROBE.format(argv=HEADLESS[name]))
    assert done.stderr.splitlines()[-1] == "LOADED []", done.stderr
    assert "Traceback" not in done.stderr


def test_the_probe_would_see_textual() -> None:
    done = _python(PROBE.format(argv=["--version"]).replace("main(['--version'])", "import textual"))
    assert done.stderr.splitlines()[-1] == "LOADED ['textual']"


def test_listing_commands_loads_no_numpy() -> None:
    done = _python(PROBE.format(argv=["--help"]).replace('"textual"', '"textual", "numpy", "psutil"'))
    assert done.stderr.splitlines()[-1] == "LOADED []", done.stderr


def _imported(path: Path) -> set[str]:
    """Top-level names that a module imports, absolute ones only."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            out |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            out.add(node.module.split(".")[0])
    return out


AGENT = sorted((ROOT / "agent" / "sgtop_agent").rglob("*.py"))


@pytest.mark.parametrize("path", AGENT, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_agent_imports_only_the_standard_library(path: Path) -> None:
    own = {"sgtop_agent"} if path.name == "sitecustomize.py" else set()  # it stands outside the package when it runs
    assert _imported(path) <= sys.stdlib_module_names | own
    # The grammar of 3.10, the oldest Python that the agent may be loaded into.
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def test_the_agent_loads_nothing_else_at_run_time() -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "agent").with_suffix("").parts)
        for path in AGENT
        if path.name not in ("__init__.py", "__main__.py", "sitecustomize.py")
    ]  # fmt: skip
    code = f"""
import importlib, sys
before = set(sys.modules)
for name in {modules!r}:
    importlib.import_module(name)
tops = {{m.split(".")[0] for m in set(sys.modules) - before}}
print(sorted(t for t in tops if t not in sys.stdlib_module_names and t != "sgtop_agent"))
"""
    done = _python(code)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


PURE = [
    path
    for path in sorted((ROOT / "tui" / "sgtop_tui").rglob("*.py"))
    if path.parent.name == "panels" or path.name in ("board.py", "look.py", "plan.py", "lines.py", "fmt.py", "keys.py")
]


@pytest.mark.parametrize("path", PURE, ids=lambda p: p.name)
def test_panels_are_pure(path: Path) -> None:
    """Drawing needs no Textual, no clock, no file: a screen is a function of the snapshot and the size."""
    assert not _imported(path) & {"textual", "time", "socket", "subprocess", "threading"}
