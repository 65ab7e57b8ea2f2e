"""Files that findings cause, names of files, and what is said before it is too late."""

from __future__ import annotations

import dataclasses as dc
from pathlib import Path

import pytest
from sgtop_core.model.snapshot import Alert, Attach, Overhead, Server, Snapshot
from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.keeper import OnAlert, attach, can_record_into, can_record_to, file_name
from sgtop_core.recording.reader import Recording
from sgtop_core.recording.writer import FileWriter
from sgtop_tui.recordings import file_size

from tests.recording import frames

ALERT = Alert("decode-eager", "critical", 0.0, "TP0", "decode runs eager", "e", "n")


def snapshot(t: float, *alerts: Alert) -> Snapshot:
    server = Server(30000, "/models/Qwen3 8B", "0.5.20", 1, 1, 1)
    way, cost = Attach("pending-call", "live"), Overhead(None, None, None)
    return Snapshot(t, int(t * 1e9), 5.0, 5.0, server, way, (), cost, {}, alerts)


class Session:
    def __init__(self) -> None:
        self.taps = []  # type: ignore[var-annotated]

    def snapshot(self) -> Snapshot:
        return snapshot(0.0)


def feed(session: Session, second: float) -> None:
    for tap in session.taps:
        tap("TP0", {"k": "note", "text": f"{second}"}, int(second * 1e9))


def run(folder: Path, plan: dict[int, tuple[Alert, ...]], **options: object) -> list[tuple[int, str]]:
    """A minute with the findings of ``plan`` from its seconds on; (second, file) for each that was written."""
    session = Session()
    recorder = attach(session, ring_s=20.0)
    for tap in session.taps:
        tap("TP0", frames.hello(0), 0)
    on_alert = OnAlert(recorder, folder, **options)  # type: ignore[arg-type]
    now: tuple[Alert, ...] = ()
    out = []
    for second in range(60):
        feed(session, second)
        recorder.stop()  # packs what waits
        now = plan.get(second, now)
        path = on_alert.look(snapshot(float(second), *now))
        if path:
            out.append((second, path))
    recorder.close()
    return out


def test_a_file_some_seconds_after_a_finding_began(tmp_path: Path) -> None:
    written = run(tmp_path, {20: (ALERT,), 40: ()})
    assert [s for s, _ in written] == [30]
    assert Path(written[0][1]).name.startswith("sgtop-Qwen3-8B-")
    assert "decode-eager" in written[0][1]
    with Recording(written[0][1]) as r:
        got = [e.frame for e in r]
    assert got[0]["k"] == "hello"
    texts = [f["text"] for f in got if f["k"] == "note"]
    assert texts[0] == "10"
    assert texts[-1] == "30"


def test_a_finding_that_stays_causes_one_file_and_one_that_comes_back_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert [s for s, _ in run(tmp_path / "a", {5: (ALERT,)})] == [15]
    assert [s for s, _ in run(tmp_path / "b", {5: (ALERT,), 20: (), 40: (ALERT,)})] == [15, 50]


def test_what_is_only_information_causes_none(tmp_path: Path) -> None:
    info = dc.replace(ALERT, severity="info")
    ended = dc.replace(ALERT, active=False)
    assert run(tmp_path, {5: (info, ended)}) == []


def test_not_more_files_than_allowed(tmp_path: Path) -> None:
    plan = {5: (ALERT,), 17: (), 18: (ALERT,), 30: (), 31: (ALERT,)}
    assert len(run(tmp_path, plan, max_files=2, after_s=2.0)) == 2


def test_names_of_files_hold_no_paths() -> None:
    name = file_name(snapshot(0.0), 1.79e9, "x")
    assert name.startswith("sgtop-Qwen3-8B-2026")
    assert "/" not in name
    assert file_name(None, 1.79e9).startswith("sgtop-2026")


def test_advice_about_where_to_record_works(tmp_path: Path) -> None:
    """A folder cannot be made where a file is, and -f does not write over a folder."""
    (file := tmp_path / "rec.sgtop").write_text("x")
    for path in (file / "x.sgtop", file / "deep" / "x.sgtop"):
        with pytest.raises(RecordingError, match=r"rec.sgtop is a file, not a folder") as e:
            can_record_to(path)
        assert "mkdir" not in e.value.mend
    with pytest.raises(RecordingError, match="is a file, not a folder"):
        can_record_into(file)
    for overwrite in (False, True):
        with pytest.raises(RecordingError, match="is a folder") as e:
            FileWriter(tmp_path, {}, overwrite=overwrite)
        assert e.value.mend == f"-o {tmp_path}/NAME.sgtop"
    with pytest.raises(RecordingError, match="is a folder"):
        can_record_to(tmp_path)
    with pytest.raises(RecordingError) as e:
        can_record_into(tmp_path / "a b")
    assert e.value.mend == f"mkdir -p '{tmp_path}/a b'"


def test_a_missing_folder_is_said_before_anything_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is not a folder") as e:
        can_record_to(tmp_path / "no" / "x.sgtop")
    assert e.value.mend.startswith("mkdir -p ")
    can_record_to(tmp_path / "x.sgtop")


@pytest.mark.parametrize(("size", "words"), [(0, "0 bytes"), (44_321, "44 kB"), (999_600, "1.0 MB"), (12e6, "12.0 MB")])
def test_sizes_of_files(size: int, words: str) -> None:
    assert file_size(int(size)) == words
