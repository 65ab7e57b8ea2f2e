"""Lines that the prefill and the decode panel share, and how many of them a panel wants."""

from __future__ import annotations

from .. import fmt
from ..lines import EMPTY, Line, Pen
from ..look import Look, ModeSum
from .charts import chart

MOST = 11
"""Lines that either panel can use, its chart among them."""


def ideal(look: Look, width: int) -> int:
    """Lines with every figure, without the chart."""
    return 5


def least(look: Look, width: int) -> int:
    """Lines below which the panel says too little."""
    return 3


def figure(pen: Pen, value: str, unit: str, width: int = 0, style: str = "figure") -> Pen:
    """A value in a cell of ``width`` and its unit, two blanks after."""
    return pen.cell(value, max(width, len(value)), style).put(f" {unit}  ", "dim")


def step_line(mode: ModeSum, width: int) -> Line:
    """``step 38 ms p50  71 ms p99`` and a sparkline of p50 over the window."""
    pen = Pen(1).put("step ", "dim")
    figure(pen, fmt.ms(mode.step_p50), "p50", 6)
    figure(pen, fmt.ms(mode.step_p99), "p99", 6)
    return _spark(pen, mode.series, width)


def _spark(pen: Pen, series: tuple[float | None, ...], width: int) -> Line:
    room = width - pen.width - 1
    if room >= 6:
        spark = fmt.sparkline(series, room)
        pen.put(spark, "spark")
    return pen.line()


def gpu_line(mode: ModeSum) -> Line:
    """GPU time of the forwards, where it is measured."""
    pen = Pen(1).put("gpu  ", "dim")
    figure(pen, fmt.ms(mode.gpu_p50), "p50", 6)
    figure(pen, fmt.ms(mode.gpu_p99), "p99", 6)
    return pen.line()


def rate_chart(mode: ModeSum, width: int, height: int) -> list[Line]:
    """tokens/s over the window, in whatever room is left; a blank line above it where there is room for one."""
    known = [v for v in mode.rate_series if v is not None]
    if not known or height < 2:
        return []
    lines = min(6, height - 1 if height > 3 else height)
    out = chart("tok/s", fmt.count(known[-1]), fmt.count(max(known)), mode.rate_series, width, lines)
    return [EMPTY, *out] if height > lines else out
