"""Files: whatever cut or bit befalls one, it is a shorter recording or an error in words, never a traceback."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_core.recording import chunk, container
from sgtop_core.recording.chunk import Entry, encode
from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.feed import Feed
from sgtop_core.recording.reader import Recording, Sticky, slot
from sgtop_core.recording.recorder import Recorder
from sgtop_core.recording.writer import FileWriter

from tests.recording import frames
from tests.recording.live import START, Live

META = {"server": {"model": "tiny"}, "made": "test"}


def plain(entries: list[Entry]) -> list[tuple[str, int, str]]:
    """Entries as something that compares quickly."""
    return [(e.source, e.mono_ns, repr({k: v for k, v in e.frame.items() if k != "c"})) for e in entries]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[list[Entry]], list[int]]:
    """(bytes of a file, entries of each chunk, offset of each chunk's end)."""
    path = tmp_path_factory.mktemp("rec") / "x.sgtop"
    w = FileWriter(path, META)
    chunks: list[list[Entry]] = []
    ends: list[int] = []
    sticky = Sticky()
    all_entries = [Entry(*e) for e in frames.stream(2, 1.0, steps_per_s=20)]
    for i in range(0, len(all_entries), 40):
        part = all_entries[i : i + 40]
        w.add(encode(part, sticky.entries()), part[0].mono_ns, part[-1].mono_ns, len(part))
        for e in part:
            sticky.see(e)
        chunks.append(part)
        ends.append(w.size)
    w.close()
    return path.read_bytes(), chunks, ends


def without_hellos(entries: list[tuple[str, int, str]]) -> tuple[list[tuple[str, int, str]], set[tuple[str, str]]]:
    """(the others, what the hellos say)."""
    hellos = {(source, frame) for source, _, frame in entries if "'hello'" in frame}
    return [x for x in entries if (x[0], x[2]) not in hellos], hellos


def read(data: bytes) -> list[tuple[str, int, str]]:
    with Recording(io.BytesIO(data)) as r:
        return plain(list(r))


def test_whole(written: tuple[bytes, list[list[Entry]], list[int]]) -> None:
    data, chunks, _ = written
    with Recording(io.BytesIO(data)) as r:
        assert r.complete
        assert r.meta == META
        assert r.damage == 0
        assert plain(list(r)) == plain([e for c in chunks for e in c])
        assert r.seconds == pytest.approx(1.0, abs=0.1)


def test_without_its_index_it_reads_the_same(written: tuple[bytes, list[list[Entry]], list[int]]) -> None:
    data, chunks, ends = written
    with Recording(io.BytesIO(data[: ends[-1]])) as r:
        assert not r.complete
        assert r.damage == 0
        assert plain(list(r)) == plain([e for c in chunks for e in c])


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_cut_anywhere(written: tuple[bytes, list[list[Entry]], list[int]], data: st.DataObject) -> None:
    raw, chunks, ends = written
    cut = data.draw(st.integers(0, len(raw) - 1))
    whole = [c for c, e in zip(chunks, ends, strict=True) if e <= cut]
    if not whole:
        with pytest.raises(RecordingError) as e:
            read(raw[:cut])
        assert e.value.what
        return
    assert read(raw[:cut]) == plain([e for c in whole for e in c])


@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_flip_any_bit(written: tuple[bytes, list[list[Entry]], list[int]], data: st.DataObject) -> None:
    raw, chunks, ends = written
    at = data.draw(st.integers(0, len(raw) - 1))
    flipped = bytearray(raw)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    hit = next((i for i, e in enumerate(ends) if at < e), None)  # the meta chunk counts to chunk 0 here
    try:
        got = read(bytes(flipped))
    except RecordingError:
        assert at < container.HEAD.size, "only the head's bits may make a file unreadable"
        return
    rest = [c for i, c in enumerate(chunks) if i != hit]
    lost_one = plain([e for c in rest for e in c])
    everything = plain([e for c in chunks for e in c])
    # hellos are told again after damage, at the time of the next chunk; apart from them at most the hit chunk is
    # missing, and order is kept
    (got, told), (everything, hellos), (lost_one, _) = (without_hellos(x) for x in (got, everything, lost_one))
    assert got in (everything, lost_one)
    assert told == hellos


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_after_a_good_head(noise: bytes) -> None:
    with pytest.raises(RecordingError):
        read(container.head() + noise)


@pytest.mark.parametrize("data", [b"", b"SGTOP", b"not a recording at all", b"\x1f\x8b" + bytes(100)])
def test_not_a_recording(data: bytes) -> None:
    with pytest.raises(RecordingError, match="not a recording"):
        read(data)


def test_a_newer_version_is_refused_kindly(written: tuple[bytes, list[list[Entry]], list[int]]) -> None:
    newer = container.HEAD.pack(container.MAGIC, container.VERSION + 1, 0) + written[0][container.HEAD.size :]
    with pytest.raises(RecordingError, match="newer sgtop") as e:
        read(newer)
    assert "pip install --upgrade" in e.value.mend


def test_a_chunk_that_lies_about_its_length(written: tuple[bytes, list[list[Entry]], list[int]]) -> None:
    raw = bytearray(written[0])
    struct.pack_into("<I", raw, raw.index(b"sgCK", raw.index(b"sgCK") + 1) + 4, 0xFFFFFFFF)
    with Recording(io.BytesIO(bytes(raw))) as r:
        list(r)
        assert r.damage >= 1


def test_seek_begins_with_what_must_be_known(written: tuple[bytes, list[list[Entry]], list[int]]) -> None:
    data, chunks, _ = written
    with Recording(io.BytesIO(data)) as r:
        want = chunks[3]
        got = list(r.entries(want[0].mono_ns))
    assert [e.frame["k"] for e in got[:2]] == ["hello", "hello"]
    assert plain(got[2 : 2 + len(want)]) == plain(want)


def test_never_over_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("precious")
    with pytest.raises(RecordingError, match="is there already"):
        FileWriter(tmp_path / "x", META)
    assert (tmp_path / "x").read_text() == "precious"


def feed(recorder: Recorder, seconds: float = 1.0, start: int = 0) -> list[Entry]:
    entries = [Entry(*e) for e in frames.stream(1, seconds, steps_per_s=100)]
    for e in entries:
        recorder.tap(*e)
    return entries


def test_recorder_writes_what_it_was_told(tmp_path: Path) -> None:
    r = Recorder(meta=lambda: META)
    r.start(tmp_path / "x.sgtop")
    entries = feed(r)
    assert r.state().path == str(tmp_path / "x.sgtop")
    assert r.stop() == str(tmp_path / "x.sgtop")
    r.close()
    with Recording(tmp_path / "x.sgtop") as rec:
        assert plain(list(rec)) == plain(entries)
        assert rec.meta == META
    assert r.state().lost == 0


def test_no_token_in_a_recording(tmp_path: Path) -> None:
    r = Recorder()
    r.start(tmp_path / "x.sgtop")
    r.tap("TP0", {**frames.hello(0), "token": "a secret"}, 1)
    r.close()
    with Recording(tmp_path / "x.sgtop") as rec:
        assert next(iter(rec)).frame["token"] == ""


def test_a_recording_begun_late_knows_the_hellos(tmp_path: Path) -> None:
    r = Recorder()
    feed(r)
    r.start(tmp_path / "x.sgtop")
    late = Entry("TP0", {"k": "note", "text": "late"}, frames.START + 9)
    r.tap(*late)
    r.close()
    with Recording(tmp_path / "x.sgtop") as rec:
        assert [e.frame["k"] for e in rec] == ["hello", "note"]


def test_ring_keeps_the_last_seconds_and_the_hellos(tmp_path: Path) -> None:
    r = Recorder(ring_s=0.3)
    r.tap("TP0", frames.hello(0), frames.START)
    for i in range(10):
        r.tap("TP0", {"k": "note", "n": i}, frames.START + i * 100_000_000)
        r.stop()  # packs what waits: a chunk a note, without waiting for the clock
    assert r.state().ring_seconds == pytest.approx(0.3)
    r.save(tmp_path / "ring.sgtop")
    with pytest.raises(RecordingError, match="there already"):
        r.save(tmp_path / "ring.sgtop")
    r.close()
    with Recording(tmp_path / "ring.sgtop") as rec:
        got = list(rec)
    assert got[0].frame["k"] == "hello"
    assert [e.frame["n"] for e in got[1:]] == [6, 7, 8, 9]


def test_nothing_to_save(tmp_path: Path) -> None:
    r = Recorder()
    feed(r)
    with pytest.raises(RecordingError, match="nothing to save"):
        r.save(tmp_path / "x")
    r.close()


def test_a_full_queue_loses_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgtop_core.recording.recorder.QUEUE_BYTES", 4096)
    monkeypatch.setattr("sgtop_core.recording.recorder.CHUNK_S", 60.0)
    r = Recorder()
    r.start(tmp_path / "x.sgtop")
    for i in range(20):
        r.tap("TP0", {"k": "note", "n": i}, frames.START + i)
    r.close()
    lost = r.state().lost
    assert lost > 0
    with Recording(tmp_path / "x.sgtop") as rec:
        got = [e.frame for e in rec]
    assert len([f for f in got if f["k"] == "note"]) + lost == 20
    assert {"k": "lost", "n": lost} in got


def test_a_full_disk_stops_the_recording_not_the_session(tmp_path: Path) -> None:
    """RLIMIT_FSIZE in a process of its own: writes beyond it fail like those to a full disk."""
    script = f"""
import resource, sys
from sgtop_core.recording.reader import Recording
from sgtop_core.recording.recorder import Recorder
from tests.recording import frames
lines = []
r = Recorder(on_line=lines.append, ring_s=60)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
r.start({str(tmp_path / "x.sgtop")!r})
for i, e in enumerate(frames.stream(2, 3.0, steps_per_s=500)):
    r.tap(*e)
    if i % 40 == 0:
        with r._work:
            r._pack()
assert len(lines) == 1 and "recording stopped" in lines[0], lines
assert r.state().path is None and r.state().error == lines[0]
ring = r.state().ring_seconds
r.tap("TP0", {{"k": "note"}}, frames.START + 4_000_000_000)
assert r.stop() is None and r.state().ring_seconds > ring, "the ring goes on"
r.close()
with Recording({str(tmp_path / "x.sgtop")!r}) as rec:
    n = len(list(rec))
    assert n > 50 and rec.damage == 0, (n, rec.damage)
print("read", n)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("read ")
    assert (tmp_path / "x.sgtop").stat().st_size <= 40_000


def test_killed_recorder_loses_at_most_a_second(tmp_path: Path) -> None:
    """A real process, killed with SIGKILL while it records in real time."""
    path = tmp_path / "x.sgtop"
    script = f"""
import time
from sgtop_core.recording.recorder import Recorder
r = Recorder()
r.start({str(path)!r})
while True:
    now = time.monotonic_ns()
    r.tap("TP0", {{"k": "note"}}, now)
    print(now, flush=True)
    time.sleep(0.01)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        begin = time.monotonic()
        while time.monotonic() - begin < 3.3:
            last = int(p.stdout.readline())
        p.send_signal(signal.SIGKILL)
        for line in p.stdout:
            last = int(line) if line.endswith("\n") else last
    with Recording(path) as rec:
        assert not rec.complete
        assert last - rec.end_ns < 1.5e9  # a second, and what a busy machine needs to wake a thread
        assert len(list(rec)) > 3  # a busy machine gives the loop few turns


def test_an_unreadable_path_is_an_answer(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        Recording(tmp_path / "nothing")
    with pytest.raises(RecordingError, match="cannot be written"):
        FileWriter(tmp_path / "no" / "folder", META)
    assert os.listdir(tmp_path) == []


def recorded(scene: str, path: Path, how: str) -> Live:
    """Through a real recorder, which packs every 0.8 s of the scene; hellos come after two chunks, as from a server."""
    live = Live(scene)
    r = Recorder(ring_s=0.0 if how == "file" else 300.0)
    if how == "file":
        r.start(path)
    for i in range(2):
        r.tap("session", {"k": "set", "what": "client_cpu", "x": i / 100, "sticky": "client_cpu"}, START - 2 + i)
        pack(r)
    for e in live.entries:
        r.tap(*e)
    live.taps.append(r.tap)
    for _ in range(6):
        live.run(0.8)
        pack(r)
    if how == "ring":
        r.save(path)
    r.close()
    return live


def pack(r: Recorder) -> None:
    with r._work:
        r._pack()


def seen(recording: Recording) -> tuple[list[int], set[tuple[str, str | None]]]:
    """When a snapshot was made that knows the server and its ranks; and all that was told of states."""
    feed = Feed()
    ticks: list[int] = []
    told: set[tuple[str, str | None]] = set()
    for e in recording:
        told.add((e.source, slot(e)))
        if feed.take(e) and (shot := feed.snapshot(0)) is not None:
            ranks = [r for r in shot.ranks if r.rank != "TP9"]
            if shot.server.model == "tiny" and ranks and all(r.state == "live" for r in ranks):
                ticks.append(feed.now)
    return ticks, told


@pytest.mark.parametrize(
    ("scene", "how", "index"),
    [("eager-fallback", "file", True), ("eager-fallback", "file", False), ("decode-bound", "ring", True)],
    ids=["ended", "killed", "ring"],
)
def test_any_one_damaged_chunk_costs_its_own_second(scene: str, how: str, index: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.sgtop"
    recorded(scene, path, how)
    raw = path.read_bytes()
    with Recording(path) as r:
        chunks = r.chunks
        before, known = seen(r)
    assert len(before) >= 15
    if not index:
        raw = raw[: chunks[-1].offset + container.CHUNK_HEAD + chunks[-1].length]
    for i, hit in enumerate(chunks):
        damaged = bytearray(raw)
        damaged[hit.offset + container.CHUNK_HEAD + hit.length // 2] ^= 4
        with Recording(io.BytesIO(bytes(damaged))) as r:
            after, told = seen(r)
            list(r)
            assert r.damage == 1, "however often it is read"
        assert set(after) >= {t for t in before if not hit.first_ns <= t <= hit.last_ns}, f"chunk {i}"
        if i < len(chunks) - 1:
            assert told == known, f"chunk {i}"


def test_names_of_kernels_outlast_the_chunk_that_told_them(tmp_path: Path) -> None:
    path = tmp_path / "x.sgtop"
    r = Recorder()
    r.start(path)
    told = {"k": "reply", "id": 1, "ok": True, "result": {"names": {"0x1000": "my_kernel"}}}
    for i, frame in enumerate([frames.hello(0), {"k": "note"}, told, {"k": "note"}, {"k": "note"}]):
        r.tap("TP0", frame, START + i * 800_000_000)
        pack(r)
    r.close()
    with Recording(path) as rec:
        hit = rec.chunks[2]
        assert [e.frame["k"] for e in rec] == ["hello", "note", "reply", "note", "note"], "told once, read once"
    raw = bytearray(path.read_bytes())
    raw[hit.offset + container.CHUNK_HEAD] ^= 1
    with Recording(io.BytesIO(bytes(raw))) as rec:
        assert [e.frame["k"] for e in rec] == ["hello", "note", "hello", "reply", "note", "note"]


def test_what_is_told_again_takes_little_room(tmp_path: Path) -> None:
    path = tmp_path / "x.sgtop"
    recorded("decode-bound", path, "file")
    with Recording(path) as r:
        found = [chunk.decode(container.read_chunk(r._file, c.offset, r.size)[1]) for c in r.chunks]  # type: ignore[index]
    bare = sum(len(encode(c.entries)) for c in found)
    assert path.stat().st_size < 1.15 * bare
    assert not found[-1].told, "what every second sets anew is not told twice"
