"""Reports count what the frames hold; a diff finds what changed and leaves noise alone."""

from __future__ import annotations

import csv
import dataclasses as dc
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import sgtop_core.recording
from hypothesis import given, settings
from hypothesis import strategies as st
from sgtop_core.model.snapshot import Alert, Cpu, Culprit, Server
from sgtop_core.recording import container
from sgtop_core.recording.chunk import Entry
from sgtop_core.recording.errors import RecordingError
from sgtop_core.recording.feed import Feed
from sgtop_core.recording.reader import Recording
from sgtop_core.recording.recorder import Recorder
from sgtop_core.report import diff, tables, text
from sgtop_core.report.figures import AlertFigures, ContentionFigures, CulpritFigures, Figures, RankFigures
from sgtop_core.report.measure import Held, contention, measure

from tests.recording import recordings
from tests.recording.live import Live
from tests.recording.test_file import pack

EMBEDDED = Path(sgtop_core.recording.__file__).parent / "embedded"


def measured(live: Live, path: Path) -> Figures:
    with Recording(live.write(path)) as r:
        return measure(r)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Live, Figures]]:
    folder = tmp_path_factory.mktemp("report")
    out = {}
    for name, scene, seed in (("a", "decode-bound", 1), ("again", "decode-bound", 2), ("eager", "eager-fallback", 3)):
        live = Live(scene, seed).run(21.7)
        out[name] = (live, measured(live, folder / f"{name}.sgtop"))
    return out


def test_steps_and_tokens_are_counted_to_the_last_one(runs: dict[str, tuple[Live, Figures]]) -> None:
    """Whole recording, odd part of a block included; only what came after the last snapshot's window is not in."""
    for live, f in (runs["a"], runs["eager"]):
        for rank in f.ranks:
            state = live.model.slots[rank.rank].state
            assert state is not None
            steps: Counter[str] = Counter()
            tokens: Counter[str] = Counter()
            for source, frame, _ in live.entries:
                if source == rank.rank and frame.get("e") == "step":
                    c = {k: memoryview(v).cast("q").tolist() for k, v in frame["c"].items()}
                    for mode, t1, n in zip(c["mode"], c["t1"], c["tokens"], strict=True):
                        if t1 <= live.model.end:
                            steps[state.mode_name(mode)] += 1
                            tokens[state.mode_name(mode)] += n
            assert {m: x.steps for m, x in rank.modes.items()} == dict(steps)
            assert {m: x.tokens for m, x in rank.modes.items()} == dict(tokens)
            assert rank.seconds == pytest.approx((live.model.end - state.start) / 1e9)


def test_causes_sum_to_the_gaps(runs: dict[str, tuple[Live, Figures]]) -> None:
    for _, f in runs.values():
        for rank in f.ranks:
            assert rank.gaps_ms is not None
            assert sum(rank.causes_ms.values()) == pytest.approx(rank.gaps_ms.total, rel=0.02)
            assert sum(rank.stages_s.values()) == pytest.approx(rank.seconds, rel=0.01)


def test_text(runs: dict[str, tuple[Live, Figures]]) -> None:
    out = text.text(runs["eager"][1])
    assert out.startswith("tiny TP2 SGLang 0.5.20\n")
    for part in ("Steps by mode", "DECODE", "Gaps between forwards by cause", "Findings", "decode runs eager", "→ "):
        assert part in out
    healthy = text.text(runs["a"][1])
    assert "No findings." in healthy


def test_text_says_what_is_missing(runs: dict[str, tuple[Live, Figures]]) -> None:
    f = dc.replace(runs["a"][1], complete=False, damage=2, lost={"step": 7})
    out = text.text(f)
    assert "broken off" in out
    assert "2 damaged parts were" in out
    assert "7 rows of step were lost" in out
    assert "1 damaged part was skipped" in text.text(dc.replace(f, damage=1))


def test_json_and_csv(runs: dict[str, tuple[Live, Figures]]) -> None:
    f = runs["eager"][1]
    data = json.loads(json.dumps(tables.as_json(f), allow_nan=False))
    assert data["report"] == 1
    assert data["ranks"][0]["modes"]["DECODE"]["steps"] == f.ranks[0].modes["DECODE"].steps
    for t in tables.tables(f):
        rows = list(csv.reader(io.StringIO(tables.as_csv(t))))
        assert tuple(rows[0]) == t.head
        assert len(rows) == 1 + len(t.rows)
    steps = next(t for t in tables.tables(f) if t.key == "steps")
    assert {r[1] for r in steps.rows} == {"DECODE", "EXTEND"}


def test_findings_and_how_long_they_held(runs: dict[str, tuple[Live, Figures]]) -> None:
    live, f = runs["eager"]
    found = next(a for a in f.alerts if "eager" in a.alert.title)
    began = next(s for s in live.snapshots if any(a.id == found.alert.id for a in s.alerts))
    since = next(a.since for a in began.alerts if a.id == found.alert.id)
    assert found.seconds == pytest.approx(live.snapshots[-1].time - since, abs=1.0)


def lines(out: str, title: str) -> list[list[str]]:
    """Rows of one table of a text, as words that stand apart by two blanks or more."""
    part = out.split(f"\n{title}")[1].split("\n\n")[0].splitlines()[2:]
    return [re.split(r"\s{2,}", x.strip()) for x in part]


@pytest.mark.parametrize("path", sorted(EMBEDDED.glob("*.sgtop")), ids=lambda p: p.stem)
def test_shares_of_a_table_sum_to_all(path: Path) -> None:
    """What is too small for a row of its own is in the last row; CSV has every row."""
    with Recording(path) as r:
        f = measure(r)
    out = text.text(f)
    causes, stages = lines(out, "Gaps between forwards by cause"), lines(out, "Main thread by stage")
    assert sum(float(x[3]) for x in causes) == pytest.approx(100, abs=0.1)
    # A stage that had not ended yet when the recording did is in no row.
    known = 100 * sum(f.ranks[0].stages_s.values()) / f.ranks[0].seconds
    assert sum(float(x[3]) for x in stages) == pytest.approx(known, abs=0.1)
    assert sum(float(x[2]) for x in causes) == pytest.approx(sum(f.ranks[0].causes_ms.values()), rel=0.002)
    for rows in (causes, stages):
        assert "rest" not in {x[1] for x in rows[:-1]}
    every = next(t for t in tables.tables(f) if t.key == "gaps")
    assert len(every.rows) == len(f.ranks[0].causes_ms)


def test_every_rank_has_its_rest() -> None:
    one = figures([1.0]).ranks[0]
    ranks = (
        dc.replace(one, causes_ms={"a": 999.2, "b": 0.5, "c": 0.3}),
        dc.replace(one, rank="TP1", causes_ms={"a": 999.5, "b": 0.5}),
        dc.replace(one, rank="TP2", causes_ms={f"c{i}": 0.001 for i in range(2000)}),
    )
    rows = lines(text.text(dc.replace(figures([1.0]), ranks=ranks)), "Gaps between forwards by cause")
    want = [["TP0", "a"], ["TP0", "rest"], ["TP1", "a"], ["TP1", "b"], ["TP2", "rest"]]
    assert [x[:2] for x in rows] == want
    assert [float(x[3]) for x in rows] == pytest.approx([99.92, 0.08, 99.95, 0.05, 100.0])


def test_who_is_not_named_is_in_the_rest() -> None:
    def cpu(pids: range) -> Cpu:
        culprits = tuple(Culprit(i, f"p{i}", 10, float(i)) for i in pids)
        return Cpu("A", wait_ms=1.0, culprits=culprits)

    c = contention([cpu(range(1, 16)), cpu(range(11, 26))])
    assert c is not None
    assert c.others is not None
    assert len(c.culprits) == 20
    assert sum(k.ms for k in c.culprits) + c.others.ms == sum(range(1, 16)) + sum(range(11, 26))
    assert sum(k.count for k in c.culprits) + c.others.count == 300
    one = dc.replace(figures([1.0]).ranks[0], contention=c)
    out = text.text(dc.replace(figures([1.0]), ranks=(one,)))
    assert lines(out, "Who took the CPU")[-1][2:] == ["rest", "–", str(c.others.count), "15.00"]


def test_ids_are_no_quantities() -> None:
    """Pids have no gap between the thousands; counts have."""
    c = ContentionFigures("A", 1.0, 4_194_304, 1.0, None, None, (CulpritFigures("batch-job", 4_194_304, 4_321, 1.0),))
    one = dc.replace(figures([1.0]).ranks[0], contention=c)
    rows = lines(text.text(dc.replace(figures([1.0]), ranks=(one,))), "Who took the CPU")
    assert [x[3:5] for x in rows] == [["–", "4 194 304"], ["4194304", "4 321"]]
    for t in tables.tables(figures([1.0])):
        assert not {"tid", "port"} & set(t.head), "an id: add it to IDS"


def alert(severity: str, title: str, active: bool = True, rank: str | None = "TP0") -> Alert:
    return Alert("x", severity, 100.0, rank, title, f"evidence of {title}", "", active)


def looked(shown: Sequence[Alert], ticks: int = 4) -> AlertFigures:
    """A finding that stood like this, each for so many snapshots of 0.25 s."""
    held = Held(shown[0], shown[0].since)
    for i, a in enumerate(a for a in shown for _ in range(ticks)):
        held.see(a, 100.25 + i / 4)
    return held.figures()


def test_a_finding_is_shown_at_its_worst_not_as_it_faded() -> None:
    shown = [
        alert("warning", "rises"), alert("critical", "a"), alert("critical", "b"), alert("critical", "c"),
        alert("warning", "fades"), alert("info", "fades", active=False),
    ]  # fmt: skip
    f = looked(shown)
    assert (f.alert.severity, f.alert.title, f.alert.evidence) == ("critical", "b", "evidence of b")
    assert not f.alert.active
    assert f.seconds == 5.0  # begin and end are those of the whole finding
    # The worst time may come in two parts, and end the recording.
    f = looked([*shown[:3], *shown[4:5], alert("critical", "d"), alert("critical", "e")])
    assert (f.alert.title, f.alert.active, f.seconds) == ("b", True, 6.0)
    # One that had ended before the recording began.
    f = looked([alert("warning", "old", active=False)])
    assert (f.alert.title, f.alert.active, f.seconds) == ("old", False, 0.0)


def test_a_finding_is_not_shown_as_it_was_only_held() -> None:
    old = [dc.replace(alert("critical", "a"), evidence=f"a; that was {n} s ago", quiet_s=float(n)) for n in (1, 2, 3)]
    f = looked([alert("critical", "a"), *old])
    assert f.alert.evidence == "evidence of a", "a report is read later: ago would mean something else"
    assert f.seconds == 4.0


def test_embedded_contention_is_critical() -> None:
    with Recording(EMBEDDED / "contention.sgtop") as r:
        f = measure(r)
        states = {(a.severity, a.title, a.evidence) for a in shown_alerts(r)}
    for x in f.alerts:
        assert (x.alert.severity, x.alert.title, x.alert.evidence) in states
    by = {x.alert.id: x for x in f.alerts}
    assert by["preempted"].alert.severity == "critical"
    out = text.text(f)
    assert re.search(r"^  critical: TP0 preempted \d{3}× by batch-job ", out, re.M)
    assert "TP0: TP0" not in out
    assert "TP0: TP0" not in diff.text(diff.diff(f, dc.replace(f, alerts=())))


def shown_alerts(recording: Recording) -> Iterator[Alert]:
    feed = Feed()
    for e in recording:
        if feed.take(e):
            yield from feed.model.alerts


@pytest.mark.parametrize(
    ("rank", "title", "want"),
    [
        ("TP0", "TP0 preempted 7×", "TP0 preempted 7×"),
        ("TP1", "TP10 holds up TP1", "TP1: TP10 holds up TP1"),
        ("DP0 TP1", "DP0 TP1 hangs", "DP0 TP1 hangs"),
        ("TP0", "decode runs eager", "TP0: decode runs eager"),
        (None, "decode runs eager", "decode runs eager"),
    ],
)
def test_a_finding_names_its_rank_once(rank: str | None, title: str, want: str) -> None:
    assert AlertFigures(alert("info", title, rank=rank), 1.0).title == want


def test_a_diff_names_a_finding_once_and_by_its_worst() -> None:
    a = dc.replace(figures([1.0]), alerts=())
    found = [AlertFigures(alert(s, f"TP0 is {s}"), 1.0) for s in ("warning", "critical", "info")]
    b = dc.replace(a, alerts=tuple(found))
    assert [n for n in diff.diff(a, b).notes if "finding" in n] == ["finding only in B: TP0 is critical"]
    assert [n for n in diff.diff(b, a).notes if "finding" in n] == ["finding only in A: TP0 is critical"]


def test_a_recording_without_a_snapshot(tmp_path: Path) -> None:
    path = recordings.write(tmp_path / "x", [Entry("TP0", {"k": "note"}, 5)])
    with Recording(path) as r, pytest.raises(RecordingError, match="no snapshot"):
        measure(r)


def test_the_same_load_twice_is_no_change(runs: dict[str, tuple[Live, Figures]]) -> None:
    d = diff.diff(runs["a"][1], runs["again"][1])
    changed = {c.figure for c in d.changes if c.verdict == diff.CHANGED}
    assert not {f for f in changed if "step" in f or "tokens" in f or "graph" in f}, changed
    assert "figures did not change" in diff.text(d)


def test_what_changed_is_found(runs: dict[str, tuple[Live, Figures]]) -> None:
    d = diff.diff(runs["a"][1], runs["eager"][1])
    by = {c.figure: c for c in d.changes}
    graph = by["DECODE graph share %"]
    assert (graph.verdict, graph.a, graph.b) == (diff.CHANGED, 100.0, 0.0)
    slower = by["DECODE step p50 ms"]
    assert slower.verdict == diff.CHANGED
    assert slower.low is not None
    assert slower.low > 10
    assert slower.share == pytest.approx(1.93, abs=0.1)
    assert any("finding only in B" in n for n in d.notes)
    assert any("TP differs" in n for n in d.notes)
    out = diff.text(d)
    assert "DECODE step p50 ms" in out
    assert "95 % interval" in out
    assert json.loads(json.dumps(diff.as_json(d)))["changes"]


def test_short_recordings_have_no_known_noise(tmp_path: Path) -> None:
    a = measured(Live("decode-bound", 1).run(7), tmp_path / "a")
    b = measured(Live("eager-fallback", 1).run(7), tmp_path / "b")
    d = diff.diff(a, b)
    assert all(c.low is None for c in d.changes)
    assert any("noise is not known" in n for n in d.notes)
    assert {c.verdict for c in d.changes} <= {diff.UNSURE, diff.SAME, diff.ONLY_A, diff.ONLY_B}


def figures(blocks: list[float]) -> Figures:
    rank = RankFigures(
        "TP0", 1, 5.0 * len(blocks), {}, (), {}, None, None, {}, {}, None, None, {}, None, (),
        {"DECODE tokens/s": tuple(blocks)},
    )  # fmt: skip
    server = Server(30000, "m", "v", 1, 1, 1)
    return Figures("x", 5.0 * len(blocks), None, True, 0, server, None, (rank,), (), {}, None, None)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_the_interval_holds_the_truth_most_of_the_time(seed: int) -> None:
    """30 pairs of draws with a true difference of 100: the 95 % interval may miss a few, never most of them."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(30):
        d = diff.diff(
            figures((1000 + rng.normal(0, 20, 12)).tolist()), figures((1100 + rng.normal(0, 20, 12)).tolist())
        )
        c = d.changes[0]
        assert c.low is not None
        assert c.high is not None
        hits += c.low <= 100 <= c.high
    assert hits >= 20


@pytest.mark.parametrize("lead_s", [0.0, 8.0], ids=["from the start", "begun late"])
@pytest.mark.parametrize("seconds", [2.4, 7.2])
def test_shares_and_rates_are_of_the_time_that_was_seen(lead_s: float, seconds: float, tmp_path: Path) -> None:
    """Also where the hello is older than the recording, and where a second is missing, whichever."""
    live = Live("decode-bound")
    recorder = Recorder()
    for e in live.entries:
        recorder.tap(*e)
    live.taps.append(recorder.tap)
    live.run(lead_s)
    pack(recorder)
    recorder.start(tmp_path / "x.sgtop")
    for _ in range(round(seconds / 0.8)):
        live.run(0.8)
        pack(recorder)
    recorder.close()
    raw = (tmp_path / "x.sgtop").read_bytes()
    with Recording(tmp_path / "x.sgtop") as r:
        chunks = r.chunks
        (whole,) = measure(r).ranks
    assert whole.seconds == pytest.approx(seconds - 0.4, abs=0.3)
    for hit in (None, *chunks):
        data = bytearray(raw)
        if hit is not None:
            data[hit.offset + container.CHUNK_HEAD + 20] ^= 1
        with Recording(io.BytesIO(bytes(data))) as r:
            (rank,) = measure(r).ranks
        assert rank.seconds > whole.seconds - 1.6
        assert sum(rank.stages_s.values()) == pytest.approx(rank.seconds, abs=0.03)
        assert rank.modes["DECODE"].steps_per_s == pytest.approx(whole.modes["DECODE"].steps_per_s, rel=0.05)
