"""GPU counters: a row a GPU with the ranks that run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgtop_core.model.snapshot import Gpu, GpuMode
from sgtop_probes.gpu.types import BENIGN

from .. import fmt
from ..lines import Line, Pen
from ..look import Look
from .base import Panel, words


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a GPU."""

    head: str
    width: int
    show: Callable[[Gpu], str]
    priority: int
    """1 stays longest when the width shrinks."""


def _memory(g: Gpu) -> str:
    if g.memory_used_bytes is None or not g.memory_total_bytes:
        return fmt.size(g.memory_used_bytes)
    return f"{g.memory_used_bytes / 2**30:.0f}/{g.memory_total_bytes / 2**30:.0f} GiB"


def _power(g: Gpu) -> str:
    if g.power_w is None:
        return fmt.UNKNOWN
    return f"{g.power_w:.0f}/{g.power_limit_w:.0f} W" if g.power_limit_w else f"{g.power_w:.0f} W"


def _rate(value: float | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value / 1e9:.1f} GB/s" if value >= 1e8 else f"{value / 1e6:.0f} MB/s"


def _pair(rx: float | None, tx: float | None) -> str:
    return fmt.UNKNOWN if rx is None and tx is None else f"{_rate(rx)} ↓ {_rate(tx)} ↑"


COLUMNS: tuple[Column, ...] = (
    Column("SM busy", 8, lambda g: fmt.percent(g.sm_busy), 1),
    Column("DRAM", 6, lambda g: fmt.percent(g.dram_busy), 2),
    Column("tensor", 7, lambda g: fmt.percent(g.tensor_busy), 3),
    Column("occupancy", 10, lambda g: fmt.percent(g.sm_occupancy), 8),
    Column("kernel ran", 11, lambda g: fmt.percent(g.kernel_running), 6),
    Column("SM clock", 10, lambda g: fmt.UNKNOWN if g.sm_clock_mhz is None else f"{g.sm_clock_mhz} MHz", 4),
    Column("memory", 13, _memory, 5),
    Column("power", 10, _power, 7),
    Column("temp", 6, lambda g: fmt.UNKNOWN if g.temperature_c is None else f"{g.temperature_c} °C", 9),
    Column("PCIe", 24, lambda g: _pair(g.pcie_rx_bytes_per_s, g.pcie_tx_bytes_per_s), 10),
    Column("NVLink", 24, lambda g: _pair(g.nvlink_rx_bytes_per_s, g.nvlink_tx_bytes_per_s), 11),
)


def columns_for(width: int) -> list[Column]:
    """The columns that fit, in their order."""
    left = width
    kept: list[Column] = []
    for column in sorted(COLUMNS, key=lambda c: c.priority):
        if column.width + 1 > left:
            break
        left -= column.width + 1
        kept.append(column)
    return [c for c in COLUMNS if c in kept]


def slowing(g: Gpu) -> list[str]:
    """Throttle reasons that hurt: not that it idles, nor that somebody set its clocks."""
    return [r for r in g.throttle_reasons if r not in BENIGN]


def _label(g: Gpu) -> str:
    return f"{g.index} {' '.join(g.ranks)}".rstrip()


def draw(look: Look, width: int, height: int) -> list[Line]:
    """Head and a line a GPU; what slows one down stands at its end or below."""
    gpus = look.snap.gpus
    if not gpus:
        return words("no GPU of this server was found on this host", width)[:height]
    # The mode stands first: at the end of the row it would be the first thing to fall off a narrow terminal.
    estimates = _estimated(gpus) if height > len(gpus) + 2 else []
    name = max([len(_label(g)) for g in gpus] + [len(_mode_label(g, mode)) for g, mode, _ in estimates])
    reasons = max((len(", ".join(slowing(g))) + 2 for g in gpus if slowing(g)), default=0)
    columns = columns_for(width - name - 2 - (reasons if reasons < width // 3 else 0))
    pen = Pen(1).cell("", name)
    for column in columns:
        pen.gap(1).cell(column.head, column.width, "dim")
    out = [pen.line()]
    for g in gpus:
        pen = Pen(1).cell(_label(g), name, "" if g.ranks else "dim", left=True)
        for column in columns:
            text = column.show(g)
            pen.gap(1).cell(text, column.width, "dim" if text == fmt.UNKNOWN else "figure")
        hurt = slowing(g)
        if hurt and not pen.add([("  ", ""), (", ".join(hurt), "warn")], width):
            out.append(pen.line())
            pen = Pen(name + 3).put(", ".join(hurt), "warn")
        out.append(pen.line())
    out += _estimates(estimates, columns, name, width, height - len(out))
    if len(out) > height:
        out = [*out[: height - 1], _rest(gpus[height - 2 :], width)]
    return out


_OF_MODES: dict[str, Callable[[GpuMode], str]] = {
    "SM busy": lambda m: fmt.percent(m.sm_busy),
    "DRAM": lambda m: fmt.percent(m.dram_busy),
    "tensor": lambda m: fmt.percent(m.tensor_busy),
    "occupancy": lambda m: fmt.percent(m.sm_occupancy),
    "kernel ran": lambda m: fmt.percent(m.kernel_running),
    "SM clock": lambda m: fmt.UNKNOWN if m.sm_clock_mhz is None else f"{m.sm_clock_mhz:.0f} MHz",
    "power": lambda m: fmt.UNKNOWN if m.power_w is None else f"{m.power_w:.0f} W",
}


def _estimated(gpus: Sequence[Gpu]) -> list[tuple[Gpu, str, GpuMode]]:
    """Every GPU and mode with an estimate, the mode that had most of the GPU first."""
    return [(g, mode, m) for g in gpus for mode, m in sorted(g.by_mode.items(), key=lambda kv: -kv[1].gpu_s)]


def _mode_label(g: Gpu, mode: str) -> str:
    return f"{g.index} {mode}"


def _estimates(
    rows: Sequence[tuple[Gpu, str, GpuMode]], columns: Sequence[Column], name: int, width: int, height: int
) -> list[Line]:
    """Below the GPUs, where there is room: what each mode made of them, as an estimate; a line a GPU and mode."""
    if not rows or height < 2:
        return []
    head = Pen(1).put("estimate by mode", "dim")
    hidden = len(rows) - (height - 1)
    if hidden > 0:
        head.put(f", +{hidden} more", "dim")
    out = [head.line()]
    for g, mode, m in rows[: height - 1]:
        pen = Pen(1).cell(_mode_label(g, mode), name, "", left=True)
        for column in columns:
            get = _OF_MODES.get(column.head)
            text = get(m) if get is not None else ""
            pen.gap(1).cell(text, column.width, "dim" if text == fmt.UNKNOWN else "figure")
        pen.add([(f"  {fmt.percent(m.alone)} alone", "dim")], width)
        out.append(pen.line())
    return out


def _rest(gpus: Sequence[Gpu], width: int) -> Line:
    """GPUs for which there is no line: how far apart they are."""
    pen = Pen(1).put(f"+{len(gpus)}  ", "dim")
    for head, get in (("SM busy", lambda g: g.sm_busy), ("DRAM", lambda g: g.dram_busy)):
        known = [v for v in map(get, gpus) if v is not None]
        if known:
            pen.add(
                [(f"{head} ", "dim"), (f"{fmt.percent(min(known))} to {fmt.percent(max(known))}  ", "figure")], width
            )
    hurt = sorted({reason for g in gpus for reason in slowing(g)})
    pen.add([(", ".join(hurt), "warn")], width)
    return pen.line()


def _ideal(look: Look, width: int) -> int:
    return 1 + max(1, min(16, len(look.snap.gpus)))


def _least(look: Look, width: int) -> int:
    return 1 + max(1, min(2, len(look.snap.gpus)))


def _shown(look: Look) -> bool:
    return bool(look.snap.gpus) or look.choices.maximised == "gpus"


def _note(look: Look) -> str:
    names = sorted({g.name for g in look.snap.gpus})
    return " · ".join([*names[:2], look.window])


PANEL = Panel(
    key="gpus",
    title="GPU",
    number=7,
    row=44,
    priority=8,
    draw=draw,
    ideal=_ideal,
    least=_least,
    most=20,
    min_width=56,
    from_height=28,
    shown=_shown,
    note=_note,
    terms=("SM busy", "kernel ran", "throttle reason", "estimate by mode"),
)
