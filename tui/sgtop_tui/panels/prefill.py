"""Prefill: tokens a second, hit ratio, step length, what waits."""

from __future__ import annotations

from .. import fmt
from ..lines import Line, Pen
from ..look import Look, ModeSum
from .base import Panel, words


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
        spark = fmt.sparkline(series, min(room, 40))
        pen.put(spark, "spark")
    return pen.line()


def gpu_line(mode: ModeSum) -> Line:
    """GPU time of the forwards, where it is measured."""
    pen = Pen(1).put("gpu  ", "dim")
    figure(pen, fmt.ms(mode.gpu_p50), "p50", 6)
    figure(pen, fmt.ms(mode.gpu_p99), "p99", 6)
    return pen.line()


def rate_line(label: str, mode: ModeSum, width: int) -> Line:
    """tokens/s over the window as a sparkline."""
    pen = Pen(1).put(label, "dim")
    return _spark(pen, mode.rate_series, width)


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Figures, most telling first."""
    mode = look.mode("EXTEND")
    mixed = look.mode("MIXED") or look.mode("SPLIT_PREFILL") or look.mode("DLLM_EXTEND")
    main = mode or mixed
    why = look.why_empty("prefill steps, tokens and their time")
    waiting = Pen(1)
    figure(waiting, fmt.count(look.waiting), "waiting", 3)
    if look.oldest_wait_s is not None and look.waiting:
        waiting.put("oldest ", "dim").put(fmt.seconds(look.oldest_wait_s) + "  ", "figure")
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
        waiting.put("bs ", "dim").put(f"{fmt.count(main.batch_p50)}", "figure").put("  ")
    if look.kv_usage is not None:
        waiting.put("kv ", "dim").put(fmt.percent(look.kv_usage), "figure")
    out = [top.line(), step_line(main, width), waiting.line()]
    if mode is not None and mixed is not None:
        pen = Pen(1).put("mixed ", "dim")
        figure(pen, fmt.per_s(mixed.steps_per_s), "steps/s", 4)
        figure(pen, fmt.ms(mixed.step_p50), "p50", 6)
        figure(pen, fmt.ms(mixed.step_p99), "p99", 6)
        out.append(pen.line())
    if main.gpu_p50 is not None:
        out.append(gpu_line(main))
    if main.cached_tokens_per_s is not None and height > len(out):
        pen = Pen(1)
        figure(pen.put("cached ", "dim"), fmt.count(main.cached_tokens_per_s), "tok/s", 6)
        out.append(pen.line())
    if main.rate_series and height > len(out):
        out.append(rate_line("tok/s ", main, width))
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
    min_width=38,
    note=lambda look: fmt.window(look.snap.window_s),
    terms=("tok/s", "step", "hit", "waiting", "gpu", "mixed", "kv"),
)
