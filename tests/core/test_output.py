"""JSON against its schema, and the plain text."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace

import jsonschema
import pytest
from sgtop_core.jsonout import as_json, line
from sgtop_core.model.model import unknown_rank
from sgtop_core.model.snapshot import (
    GC,
    SCHEMA,
    Alert,
    Attach,
    Cpu,
    Culprit,
    Gpu,
    Kernel,
    Overhead,
    Process,
    Rank,
    Server,
    Snapshot,
)
from sgtop_core.schema import schema
from sgtop_core.simulate.scenes import SCENES
from sgtop_core.textout import WIDTH, text

from .feed import Feed

VALID = jsonschema.Draft202012Validator(schema())


@pytest.fixture(scope="module")
def shots() -> dict[str, Snapshot]:
    out = {}
    for name in SCENES:
        f = Feed.scene(name)
        f.run(7)
        f.model.server = Server(30000, "Qwen/Qwen3-8B", "0.5.23", 8, 1, 1, 1, device="cuda")
        f.model.attach = Attach("pending-call", "live")
        f.model.alerts = f.alerts
        out[name] = f.snapshot()
    return out


def full(s: Snapshot) -> Snapshot:
    """With everything that later panels fill."""
    cpu = Cpu("A", "", 412.0, 231, 9.1, (Culprit(812, "dockerd", 187, 390.5),), 0.0, 3, True)
    kernel = Kernel("gemm", "GEMM", 10, 1.5, 0.6, 150.0, 149.0, 120.0, 200.0, 9.0, 2.0)
    rank = replace(s.ranks[0], cpu=cpu, kernels={"DECODE": (kernel,)}, kernel_gaps=s.ranks[0].gaps)
    gpu = Gpu(0, "GPU-1", "H200", ("TP0",), 0.97, 10, 20, 1980, 1980, ("SwPowerCap",), 612.5, 700.0, 61, sm_busy=0.8)
    alert = Alert("decode-eager", "critical", 1.7e9, None, "t", "e", "n")
    return replace(
        s,
        ranks=(rank,),
        gpus=(gpu,),
        alerts=(alert,),
        processes=(Process("detokenizer", 4, 0.2, 9, None),),
        overhead=Overhead(3.2, 5.1, 0.02, 0.003),
        lost={"stage": 4},
        log=("10:00:00 attached",),
    )


def empty() -> Snapshot:
    """Nothing is known."""
    return Snapshot(
        time=1.0,
        mono_ns=0,
        window_s=5.0,
        covered_s=0.0,
        server=Server(None, None, None, None, None, None),
        attach=Attach(None, "connecting"),
        ranks=(unknown_rank("TP0", 1, "connecting", ""),),
        overhead=Overhead(None, None, None),
        lost={},
        alerts=(),
    )


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["$schema"].endswith("2020-12/schema")


def test_real_outputs_are_valid(shots: dict[str, Snapshot]) -> None:
    for s in (*shots.values(), full(shots["decode-bound"]), empty()):
        VALID.validate(json.loads(line(s)))


def test_the_documented_fields_are_there(shots: dict[str, Snapshot]) -> None:
    j = json.loads(line(full(shots["decode-bound"])))
    assert j["schema"] == SCHEMA
    assert {"port", "model", "sglang_version", "tp", "dp", "pp"} <= j["server"].keys()
    assert j["attach"] == "pending-call"
    (r,) = j["ranks"]
    mode = r["modes"]["DECODE"]
    assert {"steps", "steps_per_s", "tokens_per_s", "batch", "step_ms", "gpu_ms", "graph_share"} <= mode.keys()
    assert mode["batch"].keys() >= {"p50", "max"}
    assert mode["gpu_ms"].keys() >= {"p50", "p99"}
    gaps = r["gaps"]["step"]
    assert {"count", "total_ms", "p50_ms", "p99_ms", "label", "causes"} <= gaps.keys()
    assert sum(gaps["causes"].values()) == pytest.approx(gaps["total_ms"], abs=1e-5)
    (culprit,) = r["cpu"]["culprits"]
    who = {"pid": 812, "comm": "dockerd", "kind": "other", "certain": True, "ended": False}
    assert culprit == {**who, "count": 187, "ms": 390.5}
    assert r["kernels"]["DECODE"][0]["per_step"] == 2.0
    assert j["overhead"]["hook_us_per_step"] == {"p50": 3.2, "p99": 5.1}
    said = {"title", "evidence", "next", "quiet_s"}
    assert j["alerts"][0].keys() == {"id", "severity", "since", "rank", "active", *said}


def test_unknown_is_null_never_zero() -> None:
    j = as_json(empty())
    r = j["ranks"][0]
    for key in (
        "last_step",
        "last_step_age_s",
        "kv_usage",
        "finished_per_s",
        "graph_max_bs",
        "cpu_share",
        "gc",
        "cpu",
        "kernels",
    ):
        assert r[key] is None, key
    assert r["gaps"] == {"step": None, "kernel": None}
    assert r["queue"]["running"] is None
    assert j["overhead"] == {
        "hook_us_per_step": {"p50": None, "p99": None},
        "client_cpu_share": None,
        "agent_cpu_share": None,
    }
    assert j["server"]["tp"] is None


def test_not_a_number_never_leaves(shots: dict[str, Snapshot]) -> None:
    s = replace(shots["idle"], overhead=Overhead(float("nan"), float("inf"), None))
    assert json.loads(line(s))["overhead"]["hook_us_per_step"] == {"p50": None, "p99": None}


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        (("schema",), 99),
        (("ranks", 0, "state"), "sleepy"),
        (("ranks", 0, "kv_usage"), 1.5),
        (("ranks", 0, "modes", "DECODE", "steps"), -1),
        (("ranks", 0, "gaps", "step", "label"), "cosmic"),
        (("ranks", 0, "pid"), "4"),
    ],
)
def test_the_schema_refuses(shots: dict[str, Snapshot], path: tuple, bad: object) -> None:
    j = copy.deepcopy(as_json(shots["decode-bound"]))
    at = j
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = bad
    assert not VALID.is_valid(j)
    del at[path[-1]]
    assert not VALID.is_valid(j)


def test_every_field_of_a_rank_is_in_the_json(shots: dict[str, Snapshot]) -> None:
    renamed = {"kernel_gaps": "gaps", "strip": None}
    j = as_json(full(shots["decode-bound"]))["ranks"][0]
    for f in fields(Rank):
        name = renamed.get(f.name, f.name)
        assert name is None or name in j, f.name


def test_text_fits_80_columns_and_says_what_matters(shots: dict[str, Snapshot]) -> None:
    for name, s in shots.items():
        out = text(s)
        assert all(len(x) <= WIDTH for x in out.splitlines()), name
        assert ":30000" in out.splitlines()[0]
        for mode in s.ranks[0].modes:
            assert mode in out
    eager = text(shots["eager-fallback"])
    assert "!! decode runs eager" in eager
    assert "→ restart with --cuda-graph-max-bs" in eager
    assert "findings: none" in text(shots["decode-bound"])
    assert "TP7" in text(shots["straggler"])
    over = tuple(replace(a, active=False) for a in shots["eager-fallback"].alerts)
    out = text(replace(shots["eager-fallback"], alerts=over))
    assert "findings: none now" in out
    assert "ended meanwhile: decode runs eager" in out


@pytest.mark.parametrize(("n", "words"), [(1, "gc: 1 collection, "), (2, "gc: 2 collections, ")])
def test_text_counts_as_one_says_it(n: int, words: str, shots: dict[str, Snapshot]) -> None:
    s = shots["straggler"]
    assert words in text(replace(s, ranks=(replace(s.ranks[0], gc=GC(n, 3.0, 2.0)),)))


def test_text_of_nothing() -> None:
    out = text(empty())
    assert "not attached, connecting" in out
    assert " 0 " not in out.split("rank")[1].splitlines()[1]


def test_text_shows_why() -> None:
    s = replace(
        empty(),
        attach=Attach("agentless", "agentless", "no permission to trace → sudo sgtop"),
        ranks=(unknown_rank("TP0", 1, "agentless", "no permission to trace → sudo sgtop"),),
    )
    assert "→ sudo sgtop" in text(s)


def test_text_says_agentless_once() -> None:
    """It is the way and the state; other states stand beside their way."""
    s = empty()
    assert "\nagentless; " in text(replace(s, attach=Attach("agentless", "agentless", "")))
    assert "\npending-call, live; " in text(replace(s, attach=Attach("pending-call", "live", "")))
    assert "\nnot attached, starting; " in text(replace(s, attach=Attach(None, "starting", "")))
