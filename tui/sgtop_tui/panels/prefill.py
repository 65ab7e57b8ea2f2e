"""Prefill: tokens a second, hit ratio, step length, what waits."""

from __future__ import annotations

from .. import fmt
from ..lines import Line, Pen
from ..look import Look
from .base import Panel, none_seen, words
from .mode_lines import MOST, figure, gpu_line, ideal, least, rate_chart, step_line


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
        text = why or none_seen("prefill", look)
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


PANEL = Panel(
    key="prefill",
    title="prefill",
    number=2,
    row=20,
    priority=4,
    draw=draw,
    ideal=ideal,
    least=least,
    most=MOST,
    min_width=38,
    note=lambda look: look.window,
    terms=("tok/s", "step", "hit", "waiting", "gpu", "mixed", "kv"),
)
