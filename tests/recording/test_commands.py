"""The commands over recordings, as a user types them: stdout is data, stderr is talk, no traceback."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sgtop_core.recording import embedded
from sgtop_core.recording.reader import Recording

from tests.recording.live import Live


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Live]:
    live = Live("eager-fallback").run(8.0)
    return live.write(tmp_path_factory.mktemp("commands") / "x.sgtop"), live


def sgtop(*args: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sgtop_tui", *map(str, args)], capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_replay_as_json_lines_is_what_was_shown(recording: tuple[Path, Live]) -> None:
    path, live = recording
    lines = [json.loads(x) for x in sgtop("replay", path, "--json").stdout.splitlines()]
    assert len(lines) == len(live.snapshots)
    assert [x["ranks"][0]["last_step"] for x in lines] == [s.ranks[0].last_step for s in live.snapshots]


def test_replay_once(recording: tuple[Path, Live]) -> None:
    out = sgtop("replay", recording[0], "--once").stdout
    assert "DECODE" in out
    assert "replay" in out
    one = json.loads(sgtop("replay", recording[0], "--once", "--json", "--at", "4s").stdout)
    assert one["state"] == "replay"


def test_report(recording: tuple[Path, Live], tmp_path: Path) -> None:
    path, _ = recording
    assert "Steps by mode" in sgtop("report", path).stdout
    assert json.loads(sgtop("report", path, "--json").stdout)["report"] == 1
    rows = list(csv.reader(sgtop("report", path, "--csv", "steps").stdout.splitlines()))
    assert rows[0][:3] == ["rank", "mode", "steps"]


def test_diff(recording: tuple[Path, Live]) -> None:
    path, _ = recording
    assert "figures did not change" in sgtop("diff", path, path).stdout
    assert json.loads(sgtop("diff", path, path, "--json").stdout)["diff"] == 1


def test_exports(recording: tuple[Path, Live], tmp_path: Path) -> None:
    path, _ = recording
    for to, name in (("perfetto", "x.pftrace"), ("html", "x.html"), ("csv", "folder")):
        done = sgtop("export", path, "--to", to, "-o", tmp_path / name)
        assert done.stdout.strip() == str(tmp_path / name)
        again = sgtop("export", path, "--to", to, "-o", tmp_path / name, code=1)
        assert "is there already" in again.stderr
        sgtop("export", path, "--to", to, "-o", tmp_path / name, "-f")
    assert len(list((tmp_path / "folder").iterdir())) == 9


def test_a_part_of_a_recording(recording: tuple[Path, Live], tmp_path: Path) -> None:
    done = sgtop("export", recording[0], "--to", "perfetto", "-o", tmp_path / "p", "--from", "2s", "--until", "4s")
    assert "2.0 s to 4.0 s" in done.stderr
    nothing = sgtop("export", recording[0], "--to", "html", "-o", tmp_path / "q", "--from", "1h", code=1)
    assert "nothing in that range" in nothing.stderr


@pytest.mark.parametrize("command", [("replay",), ("report",), ("diff",), ("export", "--to", "html", "-o", "never")])
def test_bad_files_are_answers(command: tuple[str, ...], tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"not a recording at all")
    missing = tmp_path / "missing"
    for path, words in ((junk, "is not a recording"), (missing, "cannot be read")):
        files = [path, path] if command[0] == "diff" else [path]
        done = sgtop(command[0], *files, *command[1:], code=1)
        assert words in done.stderr
        assert done.stdout == ""


def test_a_broken_off_recording_says_so(recording: tuple[Path, Live], tmp_path: Path) -> None:
    raw = recording[0].read_bytes()
    (tmp_path / "cut").write_bytes(raw[: len(raw) * 2 // 3])
    done = sgtop("replay", tmp_path / "cut", "--once")
    assert "broken off" in done.stderr
    assert "broken off" in sgtop("report", tmp_path / "cut").stdout


def test_a_damaged_recording_says_so_and_shows_the_rest(recording: tuple[Path, Live], tmp_path: Path) -> None:
    with Recording(recording[0]) as r:
        hit = r.chunks[0].offset
    raw = bytearray(recording[0].read_bytes())
    raw[hit + 200] ^= 1
    path = tmp_path / "x.sgtop"
    path.write_bytes(raw)
    report = sgtop("report", path).stdout
    assert report.startswith("tiny TP2")
    assert "1 damaged part was skipped" in report
    assert "DECODE" in report
    shown = sgtop("replay", path, "--once")
    assert "DECODE" in shown.stdout
    for said in (
        shown.stderr,
        sgtop("replay", path, "--json").stderr,
        sgtop("export", path, "--to", "csv", "-o", tmp_path / "csv").stderr,
        sgtop("export", path, "--to", "html", "-o", tmp_path / "page.html").stderr,
    ):
        assert "sgtop: 1 damaged part is skipped" in said
    assert "DECODE" in (tmp_path / "csv" / "steps.csv").read_text()


def test_demos_are_real_small_and_whole() -> None:
    demos = embedded.all_demos()
    assert {d.name for d in demos} == {
        "cpu-server", "cpu-contention", "decode-bound", "prefill-bound", "contention", "eager-fallback"
    }  # fmt: skip
    for d in demos:
        assert d.bytes < 1_000_000
        assert d.says
        assert d.seconds > 14
        with embedded.open_demo(d.name) as r:
            assert r.complete
            assert r.damage == 0
            assert r.meta["recorded"]


@pytest.mark.parametrize(
    ("name", "at", "said"),
    [
        ("contention", "14s", r"preempted 351× by batch-job \(pid 1028\), 23.0 ms of GPU idle"),
        ("eager-fallback", "12s", "decode runs eager: bs 96 > largest captured 64"),
        ("decode-bound", "12s", "findings: none"),
        ("prefill-bound", "10s", "findings: none"),
    ],
)
def test_what_a_gpu_server_did_is_found_again(name: str, at: str, said: str) -> None:
    text = sgtop("demo", name, "--once", "--at", at).stdout
    assert re.search(said, text), text
    assert "_fwd_" in text, "the kernels' names are in it"


def test_demo_without_a_terminal() -> None:
    listed = sgtop("demo", "--list").stdout
    assert listed.index("cpu-server") < listed.index("the same server"), "it says the same as what"
    assert "DECODE" in sgtop("demo", "cpu-server", "--once", "--at", "20s").stdout
    assert "there is no demo" in sgtop("demo", "nothing", code=2).stderr


def test_headless_commands_import_no_textual(recording: tuple[Path, Live]) -> None:
    code = (
        "import sys; from sgtop_tui.cli import main; "
        f"rc = main(['report', {str(recording[0])!r}]); assert rc == 0; "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('textual', 'prometheus_client', 'perfetto')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
