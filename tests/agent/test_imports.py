"""The agent brings nothing into a server but the standard library, and its sources are what Python 3.10 reads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "agent" / "sgtop_agent"
SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_standard_library_by_relative_imports_in_310_grammar(path: Path) -> None:
    tree = ast.parse(path.read_text(), str(path), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            top = name.split(".")[0]
            # run_site is no part of the package while it runs: Python imports it as ``sitecustomize``
            allowed = top in sys.stdlib_module_names or (path.parent.name == "run_site" and top == "sgtop_agent")
            assert allowed, f"{path.name} imports {name}"


def test_importing_the_agent_imports_no_package_of_the_environment() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import sgtop_agent.boot, sgtop_agent.arm, sgtop_agent.plugin\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(n for n in new if n not in sys.stdlib_module_names and n != 'sgtop_agent'))\n"
    )
    out = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"
