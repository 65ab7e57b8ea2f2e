"""NVTX ranges carry SGLang's own labels and are popped whatever happens."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from sgtop_agent.find import Found
from sgtop_agent.hooks import Hooks
from sgtop_agent.nvtx import label

from tests.agent import fake_sglang as fake


class Nvtx:
    def __init__(self) -> None:
        self.log: list[str] = []

    def range_push(self, text: str) -> int:
        self.log.append(text)
        return 0

    def range_pop(self) -> int:
        self.log.append("pop")
        return 0


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Nvtx:
    torch: Any = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(nvtx=Nvtx(), is_available=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch.cuda.nvtx  # type: ignore[no-any-return]


def test_labels_follow_sglangs_step_spans() -> None:
    assert label("DECODE", 32, 32) == "step[DECODE bs=32]"
    assert label("EXTEND", 2, 512) == "step[EXTEND bs=2 toks=512]"
    assert label("MIXED", 7, 260) == "step[MIXED bs=7]"


def test_every_step_is_a_range_and_an_exception_closes_it(nvtx: Nvtx) -> None:
    scheduler = fake.make("ingest")
    undo = fake.install(scheduler.modes)
    try:
        hooks = Hooks(Found(scheduler, "event_loop_overlap", 0, 0), nvtx=True)
        assert hooks.nvtx_problem is None
        hooks.install()
        scheduler.run_batch(fake.Batch(scheduler.modes.DECODE, [fake.Req(1, 1)] * 3))

        def boom() -> None:
            raise LookupError

        scheduler.step_work = boom
        with pytest.raises(LookupError):
            scheduler.run_batch(fake.Batch(scheduler.modes.EXTEND, [fake.Req(5, 1)], 5, fake.PrefillStats(5, 0)))
        assert nvtx.log == ["step[DECODE bs=3]", "pop", "step[EXTEND bs=1 toks=5]", "pop"]
        assert "nvtx" in hooks.caps
        hooks.ranges.switch(False)
        scheduler.step_work = lambda: None
        scheduler.run_batch(fake.Batch(scheduler.modes.DECODE, []))
        assert len(nvtx.log) == 4
        hooks.undo()
    finally:
        undo()


def test_without_cuda_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    scheduler = fake.make("ingest")
    undo = fake.install(scheduler.modes)
    try:
        hooks = Hooks(Found(scheduler, "event_loop_overlap", 0, 0), nvtx=True)
        assert hooks.nvtx_problem
        assert not hooks.ranges.on
    finally:
        undo()
