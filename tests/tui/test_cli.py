"""The command line: one clear line for what goes wrong, documented exit codes, never a traceback."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sgtop_tui.cli as cli
from sgtop_core.model.windows import WINDOWS
from sgtop_tui import theme
from sgtop_tui.cli import UserError, exit_codes, live, main, options

ROOT = Path(__file__).parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == exit_codes.OK
    assert capsys.readouterr().out.startswith("sgtop ")


def test_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == exit_codes.OK
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"    {name}" in out
    for code in exit_codes.MEANINGS:
        assert f"{code:>5}  " in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == exit_codes.OK
    out = capsys.readouterr().out
    assert f"sgtop {name}" in out
    assert "%%" not in out, "a per cent sign is doubled in help=, not in description="


@pytest.mark.parametrize(
    ("argv", "mend"),
    [
        (["--once"], "sgtop record -o x --for TIME"),
        (["--json", "--for", "2m"], "sgtop record -o x --for 120s"),
        (["-a", ":39001"], "sgtop record --attach :39001 -o x --for TIME"),  # no terminal here
        (["-a", ":39001", "--once"], "sgtop record --attach :39001 -o x --for TIME"),
    ],
)
def test_a_recording_of_the_screen_needs_the_screen(
    argv: list[str], mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--record", "x", *argv]) == exit_codes.USAGE
    assert f"fix: {mend}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["demo", "bogus"],
        ["metrics", "--listen", "bogus"],
        ["metrics", "--listen", ":99999"],
        ["export", "x.sgtop", "--to", "csv", "-o", "y", "--from", "1s"],
        ["-a", "bogus", "--once"],
    ],
    ids=" ".join,
)
def test_what_only_the_command_itself_can_tell_is_a_wrong_command_line_too(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == exit_codes.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("sgtop: ")


@pytest.mark.parametrize(
    "argv",
    [["nonsense"], ["--nonsense"], ["--for", "soon"], ["--for", "0s"], ["--theme", "pink"], ["--window", "-5"]],
)
def test_wrong_command_lines(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == exit_codes.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert "sgtop: error: " in said.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", 2.0), ("2s", 2.0), ("500ms", 0.5), ("1.5 s", 1.5), ("10m", 600.0), ("1h", 3600.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert options.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "1d", "1 2", "nan", "inf"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        options.duration(text)


def test_only_windows_that_figures_can_be_had_over() -> None:
    assert [options.window(text) for text in ("5s", "60", "1m", "10m")] == [5.0, 60.0, 60.0, 600.0]
    assert sorted(options.WINDOWS) == [w.seconds for w in WINDOWS]
    with pytest.raises(argparse.ArgumentTypeError, match="'7s': there are windows of 5s, 60s, 10m"):
        options.window("7s")


def test_shared_options_may_stand_before_or_after_the_command() -> None:
    parser = cli.build_parser()
    before = parser.parse_args(["--attach", ":1", "doctor"])
    after = parser.parse_args(["doctor", "--attach", ":1"])
    assert before.attach == after.attach == ":1"
    assert parser.parse_args(["doctor"]).attach is None
    assert parser.parse_args([]).command_module == "live"


@pytest.mark.parametrize("command", [[], ["demo"], ["replay", "x.sgtop"]], ids=lambda c: c[0] if c else "live")
def test_every_screen_has_every_theme(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SGTOP_THEME", raising=False)
    parser = cli.build_parser()
    assert parser.parse_args(command).theme == "default"
    for name in theme.PALETTES:
        assert parser.parse_args([*command, "--theme", name]).theme == name
        assert parser.parse_args(["--theme", name, *command]).theme == name
    with pytest.raises(SystemExit):
        parser.parse_args([*command, "--theme", "pink"])
    offered = capsys.readouterr().err.rpartition("choose from")[2]
    assert set(re.findall(r"[\w-]+", offered)) == set(theme.PALETTES)
    monkeypatch.setenv("SGTOP_THEME", "light")
    assert cli.build_parser().parse_args(command).theme == "light"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> object:
    """``main`` runs a command that raises what is asked for."""

    def set_error(error: BaseException) -> None:
        def run(args: argparse.Namespace) -> int:
            raise error

        monkeypatch.setattr(live, "run", run)

    return set_error


def test_an_answer_in_words(failing: object, capsys: pytest.CaptureFixture[str]) -> None:
    failing(UserError("no server on :1", "nothing listens there", "sgtop list", exit_codes.NO_SERVER))  # type: ignore[operator]
    assert main([]) == exit_codes.NO_SERVER
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "sgtop: no server on :1\n  why: nothing listens there\n  fix: sgtop list\n"


@pytest.mark.parametrize(
    ("argv", "mend", "said"),
    [
        (["-a", ":39001"], "sgtop toggle --list", "sgtop toggle --attach :39001 --list"),
        (["-a", ":39001"], "`sgtop action pin 0-3,8`", "`sgtop action --attach :39001 pin 0-3,8`"),
        (["-a", "pid:7 x"], "sgtop record -o x", "sgtop record --attach 'pid:7 x' -o x"),
        (["-a", ":39001"], "sgtop record --attach :1 -o x", "sgtop record --attach :1 -o x"),
        (["-a", ":39001"], "sgtop list", "sgtop list"),
        (["-a", ":39001"], "pip install sgtop-agent", "pip install sgtop-agent"),
        ([], "sgtop toggle --list", "sgtop toggle --list"),
    ],
)
def test_advice_is_for_the_server_that_was_given(
    argv: list[str], mend: str, said: str, failing: object, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(UserError("no", "", mend))  # type: ignore[operator]
    main(argv)
    assert capsys.readouterr().err.endswith(f"  fix: {said}\n")


def test_errors_of_the_layers_below_are_answers_too(failing: object, capsys: pytest.CaptureFixture[str]) -> None:
    from sgtop_probes.errors import AttachError

    failing(AttachError("cannot enter pid 7", "ptrace_scope is 1", "sudo sgtop", "permission"))  # type: ignore[operator]
    assert main([]) == exit_codes.NO_PERMISSION
    assert "fix: sudo sgtop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ZeroDivisionError("by zero"), exit_codes.INTERNAL, "a mistake in sgtop itself: ZeroDivisionError: by zero"),
        (PermissionError(13, "Permission denied", "/proc/1/mem"), exit_codes.NO_PERMISSION, "/proc/1/mem"),
        (KeyboardInterrupt(), exit_codes.INTERRUPTED, "broken off"),
    ],
)
def test_no_traceback(
    error: BaseException, code: int, words: str, failing: object, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(error)  # type: ignore[operator]
    assert main([]) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_debug_shows_the_trace(
    failing: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGTOP_DEBUG", "1")
    failing(ZeroDivisionError("by zero"))  # type: ignore[operator]
    assert main([]) == exit_codes.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_codes_of_the_layers_are_the_same() -> None:
    """The probes cannot import the table; their numbers must be its numbers."""
    from sgtop_probes import errors

    for name in ("FAILED", "NO_SERVER", "NOT_SGLANG", "NO_PERMISSION", "NOT_READY", "SERVER_GONE", "UNSUPPORTED"):
        assert getattr(errors, name) == getattr(exit_codes, name)


@pytest.mark.parametrize(
    ("argv", "terminal", "module"),
    [
        ([], True, "screen"),
        ([], False, "once"),
        (["--once"], True, "once"),
        (["--once", "--json"], True, "once"),
        (["--json"], True, "json_lines"),
        (["--json"], False, "json_lines"),
    ],
)
def test_what_the_bare_command_does(
    argv: list[str], terminal: bool, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, args: argparse.Namespace) -> int:
            asked.append(self.name)
            return 0

    args = cli.build_parser().parse_args(argv)
    monkeypatch.setattr(cli, "load", Fake)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert live.run(args) == 0
    assert asked == [module]


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / d) for d in ("agent", "probes", "core", "tui"))}


def _sgtop(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sgtop_tui", *argv], env=_env(), capture_output=True, text=True, timeout=60, check=False
    )


def test_no_such_port_is_one_line_and_a_code() -> None:
    done = _sgtop("--attach", ":1", "--once")
    assert done.returncode == exit_codes.NO_SERVER
    assert done.stdout == ""
    assert done.stderr.startswith("sgtop: ")
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m sgtop_tui schema | head -c 10"],
        env=_env(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0


ODD_STREAMS = ["PYTHONIOENCODING=ascii", "PYTHONIOENCODING=latin-1", "LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"]


@pytest.mark.parametrize("environment", ODD_STREAMS)
def test_any_encoding_of_the_terminal_will_do(environment: str) -> None:
    """What it lacks becomes ASCII, on stdout and stderr, and JSON stays JSON."""
    script = (
        "import sys, json; import sgtop_tui.cli as cli; from sgtop_tui.cli import live\n"
        "def run(args):\n"
        r"    print('gap \u2013 5 \u00b5s \u2192 taskset')" + "\n"
        r"    print(json.dumps({'title': '\u201ca\u201d \u25b2 \udcff \u6a21'}, ensure_ascii=False))" + "\n"
        r"    raise cli.UserError('no server \u2192 none', mend='\u25b2 2')" + "\n"
        "live.run = run; sys.exit(cli.main([]))"
    )
    set_these = dict(one.split("=") for one in environment.split())
    done = subprocess.run(
        [sys.executable, "-c", script], env={**_env(), **set_these}, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == exit_codes.FAILED
    text, title = done.stdout.decode(set_these.get("PYTHONIOENCODING", "ascii")).splitlines()
    assert text.replace("µ", "u") == "gap - 5 us > taskset"
    assert json.loads(title)["title"].startswith("'a' ! ")
    assert done.stderr == b"sgtop: no server > none\n  fix: ! 2\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("what", ["schema", "--version"])
def test_a_full_disk_behind_stdout_is_said(what: str, unbuffered: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m sgtop_tui {what} > /dev/full"],
        env={**_env(), "PYTHONUNBUFFERED": unbuffered}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == exit_codes.FAILED
    assert done.stderr == "sgtop: stdout cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("how", "argv", "code"),
    [
        (">&-", "schema", exit_codes.OK),
        ("<&-", "schema", exit_codes.OK),
        ("2>&-", "--attach :1 --once", exit_codes.NO_SERVER),
        ("2>/dev/full", "--attach :1 --once", exit_codes.NO_SERVER),
        ("<&- 2>&-", "--attach nonsense --json", exit_codes.USAGE),
    ],
)
def test_closed_streams_change_neither_code_nor_data(how: str, argv: str, code: int) -> None:
    """What belongs on stderr never ends on stdout, nor in a socket that got the number of a closed stream."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m sgtop_tui {argv} {how}"],
        env=_env(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr == ""
    assert done.stdout.startswith("{") if how == "<&-" else done.stdout == ""
