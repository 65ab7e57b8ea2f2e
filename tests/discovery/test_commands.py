"""``sgtop list``, ``doctor`` and ``run`` as a user types them: data on stdout, talk on stderr, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sgtop_probes import doctor, run
from sgtop_probes.attach import ptrace
from sgtop_probes.discovery import RankProcess, Server
from sgtop_probes.errors import ProbeError
from sgtop_tui.cli import exit_codes, main

from .fake_server import server
from .test_discovery import MODEL, listening

__all__ = ["port"]
from .test_discovery import port


def test_list(tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    tree: dict[str, list[str]] = {"sglang::scheduler_TP0": [], "sglang::scheduler_TP1": []}
    args = [*MODEL, "--tp", "4", "--nnodes", "2", "--port", str(port)]
    with server(tmp_path, args, tree, listening(port)) as pid:
        assert main(["list"]) == exit_codes.OK
        out, err = capsys.readouterr()
        assert err == ""
        line = next(ln for ln in out.splitlines() if ln.startswith(f":{port} "))
        assert "org/model" in line
        assert "TP0 TP1 (not on this host: TP2 TP3)" in line
        assert main(["list", "--json"]) == exit_codes.OK
        mine = next(s for s in json.loads(capsys.readouterr().out) if s["pid"] == pid)
        assert (mine["target"], mine["tp"], mine["pp"], mine["state"]) == (f":{port}", 4, None, "running")
        assert mine["same_network"] is True, "a plain process of this host"
        assert [r["state"] for r in mine["ranks"]] == ["running", "running", "elsewhere", "elsewhere"]


def test_list_without_servers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sgtop_probes.discovery.find_servers", list)
    monkeypatch.setattr("sgtop_probes.resolve.find_servers", list)
    monkeypatch.setattr("sgtop_probes.resolve.resolve.__defaults__", (list,))
    assert main(["list"]) == exit_codes.NO_SERVER
    out, err = capsys.readouterr()
    assert out == ""
    assert "no SGLang server was found" in err
    assert main(["list", "--json"]) == exit_codes.NO_SERVER
    assert json.loads(capsys.readouterr().out) == []


def test_doctor_of_a_server_that_is_not_python(tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Its scheduler is ``sleep``: it is said, with the exit code for it."""
    with server(tmp_path, [*MODEL, "--port", str(port)], {"sglang::scheduler": []}, listening(port)):
        assert main(["doctor", "--attach", f":{port}"]) == exit_codes.UNSUPPORTED
        out = capsys.readouterr().out
        assert "no CPython symbols in sleep" in out
        assert f"server :{port} TP0" in out
        assert main(["doctor", "--attach", f":{port}", "--json"]) == exit_codes.UNSUPPORTED
        report = json.loads(capsys.readouterr().out)
        assert report["schema"] == doctor.SCHEMA
        assert report["attachable"] is False
        names = {c["name"] for c in report["checks"] if c["where"] == "host"}
        assert {"machine", "user", "yama", "ptrace", "pidfd_getfd", "GPU counters"} <= names


@pytest.fixture
def python_process() -> Iterator[int]:
    """A process of this environment's Python that has loaded an extension module and sleeps."""
    script = "import numpy, time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def _looked_at(pid: int) -> tuple[list[doctor.Check], int]:
    """What doctor says of a scheduler with this pid."""
    server = cast("Server", SimpleNamespace(name=":1"))
    return doctor.rank_checks(server, cast("RankProcess", SimpleNamespace(label="TP0", pid=pid)))


def test_doctor_of_a_stopped_scheduler_is_no_matter_of_permission(python_process: int) -> None:
    os.kill(python_process, signal.SIGSTOP)
    os.waitpid(python_process, os.WUNTRACED)
    checks, code = _looked_at(python_process)
    attach = next(c for c in checks if c.name == "attach")
    assert (attach.outcome, attach.mend) == (doctor.MISSING, f"kill -CONT {python_process}")
    assert code == exit_codes.NOT_READY


@pytest.mark.skipif(os.geteuid() != 0, reason="needs ptrace")
def test_doctor_of_a_traced_scheduler(python_process: int) -> None:
    ptrace.request(0x4206, python_process)  # PTRACE_SEIZE: stops nothing
    checks, code = _looked_at(python_process)
    attach = next(c for c in checks if c.name == "attach")
    assert f"process {os.getpid()} traces it" in attach.text
    assert attach.mend
    assert code == exit_codes.NOT_READY


def test_the_plugin_is_to_be_installed_where_the_server_sees_it(python_process: int) -> None:
    """In its virtual environment, not in the interpreter that the environment was made from."""
    checks, _ = _looked_at(python_process)
    plugin = next(c for c in checks if c.name == "plugin")
    assert f"`{sys.prefix}/bin/python -m pip install sgtop-agent`" in plugin.mend


def test_doctor_says_what_to_do_about_everything_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = doctor.host_checks()
    for check in checks:
        assert check.outcome in (doctor.OK, doctor.MISSING, doctor.LIMITED)
        if check.outcome == doctor.MISSING:
            assert check.mend
    monkeypatch.setattr(doctor.permissions, "yama_scope", lambda: 1)
    monkeypatch.setattr(doctor.procfs, "has_capability", lambda number: False)
    yama = next(c for c in doctor.host_checks() if c.name == "yama")
    assert yama.outcome == doctor.MISSING
    assert "sgtop run" in yama.mend
    assert "sysctl kernel.yama.ptrace_scope=0" in yama.mend


def test_doctor_as_nobody() -> None:
    """No root: it still reports everything and ends without a traceback."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv, to become another user")
    script = "from sgtop_probes import doctor; print(doctor.report(None, list).as_text())"
    path = [str(Path(m.__file__ or "").parents[1]) for m in (doctor, sys.modules["sgtop_agent"], __import__("msgpack"))]
    path[0] = str(Path(doctor.__file__).parents[1])
    words = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        os.path.realpath(sys.executable),
        "-c",
        script,
    ]
    env = {"PYTHONPATH": os.pathsep.join(path), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    if "Permission denied" in done.stderr:
        pytest.skip("this checkout lies where only its owner may read")
    assert done.returncode == 0, done.stderr
    assert "uid 65534" in done.stdout


# --- sgtop run --------------------------------------------------------------------------------------


def test_run_puts_the_agent_first_and_once() -> None:
    env = run.environment({"PYTHONPATH": "/a:/b", "X": "1"})
    first, *rest = env["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").is_file()
    assert rest == ["/a", "/b"]
    assert env["X"] == "1"
    assert run.environment(env) == env


def test_run_becomes_the_command() -> None:
    """Same pid, same exit code, an agent's folder in front."""
    code = "import os, sys; print(os.getpid(), 'run_site' in os.environ['PYTHONPATH']); sys.exit(7)"
    words = [sys.executable, "-m", "sgtop_tui", "run", "--", sys.executable, "-c", code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=60)
    assert out.split() == [str(process.pid), "True"]
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["no-such-command-here"], 127, "there is no command"),
        ([os.devnull], 126, "cannot be executed"),
    ],
)
def test_run_of_nothing(command: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--", *command]) == code
    assert says in capsys.readouterr().err


def test_run_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == exit_codes.USAGE
    assert "no command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "warns"),
    [
        ("python -I -m sglang.launch_server", True),
        ("python3.12 -sE x.py", True),
        ("python -u -m sglang.launch_server -I", False),
        ("python -X importtime -m x", False),
        ("sglang serve -S", False),
        ("", False),
    ],
)
def test_run_with_an_isolated_python(line: str, warns: bool) -> None:
    assert (run.warning(line.split()) is not None) is warns


def test_run_without_an_agent(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="not installed completely") as caught:
        run.environment({}, tmp_path)
    assert caught.value.mend == "pip install sgtop-agent"
