"""Prefill: tokens a second, hit ratio, step length, what waits."""

from __future__ import annotations

from .. import fmt
from ..lines import EMPTY, Line, Pen
from ..look import Look, ModeSum
from .base import Panel, words
from .charts import chart


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


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Figures, most telling first."""
    mode = look.mode("EXTEND")
    mixed = look.mode("MIXED") or look.mode("SPLIT_PREFILL") or look.mode("DLLM_EXTEND")
    main = mode or mixed
    why = look.why_empty("prefill steps, tokens and their time")
    waiting = Pen(1)
    figure(waiting, fmt.count(look.waiting), "waiting", 3)
    if look.kv_usage is not None:
        waiting.put("kv ", "dim").put(fmt.percent(look.kv_usage) + "  ", "figure")
    if look.oldest_wait_s is not None and look.waiting:
        waiting.add((("oldest ", "dim"), (fmt.seconds(look.oldest_wait_s) + "  ", "figure")), width + 2)
    if main is None:
        if why is not None and look.waiting is None:
            return words(why, width)[:height]
        text = why or f"no prefill in the last {fmt.window(look.snap.window_s)}"
        return [waiting.line(), *words(text, width)][:height]
    top = Pen(1)
    figure(top, fmt.count(main.tokens_per_s), "tok/s", 6)
    figure(top, fmt.per_s(main.steps_per_s), "steps/s", 4)
    if main.hit_ratio is not None:
        top.put("hit ", "dim").put(fmt.percent(main.hit_ratio), "figure")
    if main.batch_p50 is not None:
        waiting.add((("bs ", "dim"), (f"{fmt.count(main.batch_p50)}", "figure")), width)
    out = [top.line(), step_line(main, width), waiting.line()]
    if mode is not None and mixed is not None:
        pen = Pen(1).put("mixed ", "dim")
        figure(pen, fmt.per_s(mixed.steps_per_s), "steps/s", 4)
        pen.add(((f"{fmt.ms(mixed.step_p50):>6}", "figure"), (" p50  ", "dim")), width)
        pen.add(((f"{fmt.ms(mixed.step_p99):>6}", "figure"), (" p99", "dim")), width)
        out.append(pen.line())
    if main.gpu_p50 is not None:
        out.append(gpu_line(main))
    if main.cached_tokens_per_s is not None and height > len(out):
        pen = Pen(1)
        figure(pen.put("cached ", "dim"), fmt.count(main.cached_tokens_per_s), "tok/s", 6)
        out.append(pen.line())
    out += rate_chart(main, width, height - len(out))
    return out[:height]


def _ideal(look: Look, width: int) -> int:
    return 5


def _least(look: Look, width: int) -> int:
    return 3


PANEL = Panel(
    key="prefill",
    title="prefill",
    number=2,
    row=20,
    priority=4,
    draw=draw,
    ideal=_ideal,
    least=_least,
    most=11,
    min_width=38,
    note=lambda look: fmt.window(look.snap.window_s),
    terms=("tok/s", "step", "hit", "waiting", "gpu", "mixed", "kv"),
)
