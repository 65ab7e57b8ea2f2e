"""The kernels panel: what a mode's head says, and which causes of idle time stand where few fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sgtop_core.model.kernel_view import OUTSIDE, KernelMode
from sgtop_tui.lines import line_width, plain
from sgtop_tui.look import Look
from sgtop_tui.panels import kernels

from . import scenes

CAUSES = {"kernel wait": 50.0, "preempted": 22.0, "host wait": 15.0, "other": 13.0}


def gap_line(causes: Mapping[str, float], width: int, mode: str = "DECODE") -> str:
    line = kernels.gap_line(scenes.kernel_gaps(mode, 31_000, 0.9, causes), scenes.tracing(), width)
    assert line_width(line) <= width
    return plain(line)


def head(mode: KernelMode) -> str:
    return plain(kernels.table(mode, Look(scenes.speculative()), 200, 3)[0])


def test_a_head_says_what_its_mode_has() -> None:
    decode = scenes.tracing().modes[0]
    assert head(decode).endswith("DECODE  96 forwards · 328 launches a step · in graphs 100%")
    outside = replace(decode, mode=OUTSIDE, forwards=0, launches=471, launches_per_step=None, graph_share=0.0)
    assert head(outside).endswith(f"{OUTSIDE}  471 launches")
    assert head(replace(outside, graph_share=None)).endswith(f"{OUTSIDE}  471 launches")


def test_a_head_of_one_is_in_the_singular() -> None:
    mode = replace(scenes.tracing().modes[0], forwards=1, launches_per_step=1.0, graph_share=None)
    assert head(mode).endswith("1 forward · 1 launch a step")


def test_no_head_counts_what_is_not_known() -> None:
    for mode in scenes.tracing().modes:
        for graph in (None, 0.0, 0.5):
            text = head(replace(mode, forwards=0, launches_per_step=None, graph_share=graph))
            assert "–" not in text
            assert " 0 forwards" not in text


@pytest.mark.parametrize("height", range(2, 9))
def test_a_low_panel_uses_all_its_lines(height: int) -> None:
    lines = kernels.draw(Look(scenes.speculative()), 120, height)
    assert len(lines) == height
    assert all(plain(line).strip() for line in lines)


def test_communication_is_named_where_there_is_some() -> None:
    some = scenes.tracing()
    assert some.communication_share
    assert "communication " in plain(kernels.state_line(some, 0.0, 200))
    none = plain(kernels.state_line(replace(some, communication_share=0.0, communication_exposed_share=0.0), 0.0, 200))
    assert "busy (union)" in none
    assert "communication" not in none
    assert "alone" not in none


@pytest.mark.parametrize("fault", sorted(kernels.FAULTS))
@pytest.mark.parametrize("mode", ["DECODE", "EXTEND", "TARGET_VERIFY", "draft DRAFT_EXTEND_V2"])
def test_a_fault_stays_where_few_causes_fit(fault: str, mode: str) -> None:
    causes = {"kernel wait": 60.0, fault: 1.0, "host wait": 26.0, "other": 13.0}
    text = gap_line(causes, 80, mode)
    assert f"{fault} 1%" in text
    assert "rest " in text


def test_causes_that_do_not_fit_are_summed() -> None:
    assert gap_line(CAUSES, 80).endswith("  preempted 22%  rest 78%")
    assert gap_line(CAUSES, 200).endswith("  kernel wait <5 µs 50%  preempted 22%  host wait 15%  other 13%")


@given(
    st.dictionaries(
        st.sampled_from([*kernels.FAULTS, "kernel wait", "host wait", "other", "no work"]), st.floats(5, 100)
    ),
    st.integers(60, 200),
)
def test_no_cause_is_cut_silently(causes: dict[str, float], width: int) -> None:
    text = gap_line(causes, width)
    known = [name for name, _ in scenes.kernel_gaps("DECODE", 9, 0.9, causes).shares()]
    assert all(f"  {name} " in text for name in known) or "  rest " in text or "more" in text


def test_the_key_says_why_no_rank_can_trace() -> None:
    failed = {"state": "failed", "reason": "no libcupti is mapped"}
    assert kernels.unusable({"TP0": failed, "TP1": failed}) == "no libcupti is mapped"
    assert kernels.unusable({"TP0": {"state": "unavailable"}}) == "unavailable"
    assert kernels.unusable({"TP0": failed, "TP1": {"state": "tracing"}}) == "", "the panel says what one rank lacks"
    assert kernels.unusable(None) == kernels.unusable({}) == ""
