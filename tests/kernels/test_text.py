"""Kernel tables as text."""

from __future__ import annotations

from dataclasses import replace

from sgtop_core.kernels.text import lines
from sgtop_core.model.kernel_view import KernelView

from tests.tui.scenes import tracing


def test_nothing_was_asked_for() -> None:
    assert lines(KernelView("off", "off", "")) == []


def test_why_there_is_nothing() -> None:
    assert lines(KernelView("on", "failed", "no GPU")) == ["kernels: no GPU"]
    assert lines(KernelView("windows", "waiting", "")) == ["kernels: waiting"]


def test_tables_fit_eighty_columns_and_hold_the_figures() -> None:
    view = tracing()
    out = lines(replace(view, lost_buffers=3))
    assert max(map(len, out)) <= 80
    text = "\n".join(out)
    assert "busy (union) 93%, by events 97%" in text
    assert "DECODE ×1.013" in text
    assert "lost: 3 buffers" in text
    assert "DECODE: 96 forwards, 328.0 launches a step, in graphs 100%" in text
    assert "host wait 30%" in text
    assert out.index("DECODE: 96 forwards, 328.0 launches a step, in graphs 100%") < next(
        i for i, line in enumerate(out) if line.startswith("EXTEND")
    ), "most time first"
