"""Kernel tracing in a session: what agents are asked, what becomes of their answers, a table of one's own."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from sgtop_core.live.kernel_feed import RETRY_NS, KernelFeed, user_table
from sgtop_core.model.model import Model

HELLO = {"modes": {"DECODE": 2}}
STATE: dict[str, Any] = {"mode": "windows", "state": "waiting", "reason": "", "windows": [], "counters": {}, "t": 1}


def feed(mode: str = "windows") -> tuple[KernelFeed, Model]:
    model = Model()
    made = KernelFeed(model, mode)
    model.add("TP0", 1)
    made.hello("TP0", HELLO)
    return made, model


def test_off_asks_nothing_and_shows_nothing() -> None:
    made, model = feed("off")
    assert made.turn(1, 5.0) == []
    assert model.slots["TP0"].kernels is None


def test_a_rank_is_asked_once_and_again_after_a_while_when_it_cannot() -> None:
    made, model = feed()
    (order,) = made.turn(1, 5.0)
    assert order[:2] == ("TP0", "kernels")
    assert order[2]["mode"] == "windows"
    made.reply("TP0", "kernels", {"ok": True, "result": {**STATE, "state": "failed", "reason": "no GPU"}}, deque())
    assert made.turn(2, 5.0) == []
    view = model.slots["TP0"].kernels
    assert view is not None
    assert (view.state, view.reason) == ("failed", "no GPU")
    assert made.said == ["TP0: no kernel tracing: no GPU"]
    assert len(made.turn(2 + RETRY_NS, 5.0)) == 1
    assert len(made.said) == 1, "said once"


def test_an_agent_that_knows_no_kernels() -> None:
    made, model = feed()
    made.turn(1, 5.0)
    made.reply("TP0", "kernels", {"ok": False, "error": "this agent knows no operation 'kernels'"}, deque())
    made.turn(2, 5.0)
    view = model.slots["TP0"].kernels
    assert view is not None
    assert view.state == "unavailable"
    assert "knows no operation" in view.reason


def test_a_descriptor_that_is_no_ring_is_closed_and_said(tmp_path: Path) -> None:
    made, model = feed()
    made.turn(1, 5.0)
    file = tmp_path / "x"
    file.write_bytes(bytes(100_000))
    fd = os.open(file, os.O_RDONLY)
    made.reply("TP0", "kernels", {"ok": True, "result": {**STATE, "ring": True}}, deque([fd]))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    made.turn(2, 5.0)
    view = model.slots["TP0"].kernels
    assert view is not None
    assert "not a kernel ring" in view.reason


def test_what_a_user_asks_for_holds_for_every_rank() -> None:
    made, model = feed("off")
    model.add("TP1", 2)
    made.hello("TP1", HELLO)
    made.asked_by_user("TP0", {"mode": "on"})
    orders = made.turn(1, 5.0)
    assert [(label, args["mode"]) for label, _, args in orders if label == "TP1"] == [("TP1", "on")]
    made.asked_by_user("TP0", {"mode": "nonsense"})
    assert made.mode == "on"


def test_a_lost_rank_starts_anew() -> None:
    made, _ = feed()
    made.turn(1, 5.0)
    made.lost("TP0")
    assert made.turn(2, 5.0) == []
    made.hello("TP0", HELLO)
    assert len(made.turn(3, 5.0)) == 1


def test_a_table_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = user_table(os.environ)
    path.parent.mkdir()
    path.write_text('[[category]]\nname = "ours"\npatterns = ["secret"]\n')
    made, _ = feed()
    assert made._categories.of("a_secret_kernel") == "ours"
    path.write_text("nonsense")
    made, _ = feed()
    assert made._categories.of("fused_moe_kernel") == "moe"
    assert "kernels.toml" in made.said[0]


@pytest.mark.parametrize("refusal", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_configuration_folder_that_cannot_be_read_costs_only_the_table(
    refusal: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOME may be another user's."""

    def refuse(path: Path, **how: object) -> os.stat_result:
        refusal.filename = str(path)
        raise refusal

    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/other/.config")
    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "exists", lambda path, **how: bool(refuse(path)))
    made, _ = feed()
    assert made._categories.of("fused_moe_kernel") == "moe"
    assert "kernels.toml" in made.said[0]
    assert "sgtop's own are used" in made.said[0]
