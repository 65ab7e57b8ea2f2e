"""A snapshot as plain text in 80 columns, to be read in a terminal without a screen or pasted into a chat.

The order is the screen's: is it healthy, which mode is slow, where does the time go, whose fault, what to do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from sgtop_core.kernels.text import lines
from sgtop_core.model.snapshot import Alert, Quantiles, Rank, Snapshot

WIDTH = 80
_MODES = (
    f"{'mode':<21}{'steps/s':>8}{'tok/s':>8}{'bs p50':>7}{'max':>5}{'p50 ms':>8}{'p99 ms':>8}{'graph':>7}{'hit':>6}"
)
_RANKS = f"{'rank':<12}{'state':<10}{'step':>10}{'run':>6}{'wait':>6}{'KV':>6}{'p50 ms':>8}{'gap p99':>9}{'CPU':>6}"


def text(s: Snapshot) -> str:
    """The whole snapshot; lines are separated by newlines, and the last one ends with one."""
    out = [*_head(s), ""]
    groups = _groups(s.ranks)
    rows = [row for name, ranks in groups.items() for row in _mode_rows(name if len(groups) > 1 else "", ranks[0])]
    if rows:
        out += [_MODES, *rows, ""]
    out += [_RANKS, *(_rank_row(r) for r in s.ranks)]
    out += [line for r in s.ranks if r.message for line in _wrap(f"{r.rank}: {r.message}", "  ")]
    for ranks in groups.values():
        worst = _worst(ranks)
        out += ["", *_where(worst, len(ranks) > 1)]
        kernels = lines(worst.tracing) if worst.tracing is not None else []
        out += ["", *kernels] if kernels else []
    out += ["", *_findings(s.alerts)]
    return "\n".join(line.rstrip() for line in out) + "\n"


def _head(s: Snapshot) -> list[str]:
    v = s.server
    par = " ".join(f"{k}{n}" for k, n in (("TP", v.tp), ("PP", v.pp), ("DP", v.dp), ("EP", v.ep)) if n and n > 1)
    where = f":{v.port}" if v.port else f"pid:{v.pid}"
    model = (v.model or "unknown model").rstrip("/").rsplit("/", 1)[-1]
    first = ["sgtop", where, model, par or "TP1", f"SGLang {v.sglang_version or 'unknown'}", v.device or ""]
    ways = dict.fromkeys((s.attach.way or "not attached", s.attach.state))  # agentless is a way and a state
    how = ", ".join(ways)
    o = s.overhead
    cost = f"hooks {_num(o.hook_us_p50)} µs a step (p99 {_num(o.hook_us_p99)})"
    lost = ", ".join(f"{t} {n}" for t, n in s.lost.items()) or "0"
    lines = ["  ".join(x for x in first if x), f"{how}; {s.covered_s:.1f} s seen; {cost}; rows lost {lost}"]
    if s.attach.message:
        lines += _wrap(s.attach.message, "  ")
    return lines


def _groups(ranks: Iterable[Rank]) -> dict[str, list[Rank]]:
    """TP ranks run the same batches: one of them speaks for the group."""
    out: dict[str, list[Rank]] = {}
    for r in ranks:
        out.setdefault(" ".join(w for w in r.rank.split() if not w.startswith("TP")), []).append(r)
    return out


def _worst(ranks: Sequence[Rank]) -> Rank:
    return max(ranks, key=lambda r: r.gaps.quantiles_ms.total if r.gaps else -1.0)


def _num(v: float | None, digits: int = 3) -> str:
    """Three digits that matter; – for unknown."""
    if v is None:
        return "–"
    if v == int(v) and abs(v) < 1e4:
        return str(int(v))
    if abs(v) >= 1e6:
        return f"{v / 1e6:.1f}M"
    if abs(v) >= 1e4:
        return f"{v / 1e3:.1f}k"
    whole = len(str(int(abs(v)))) if abs(v) >= 1 else 0
    return f"{v:.{max(digits - whole, 0)}f}" if abs(v) >= 0.001 else f"{v:.0e}"


def _pct(v: float | None) -> str:
    return "–" if v is None else f"{v:.0%}"


def _mode_rows(group: str, r: Rank) -> list[str]:
    rows = []
    for name, m in sorted(r.modes.items(), key=lambda kv: -kv[1].step_ms.total):
        label = f"{group} {name}".strip()
        rows.append(
            f"{label:<21.21}{_num(m.steps_per_s):>8}{_num(m.tokens_per_s):>8}{_num(m.batch_p50):>7}"
            f"{_num(m.batch_max):>5}{_num(m.step_ms.p50):>8}{_num(m.step_ms.p99):>8}"
            f"{_pct(m.graph_share):>7}{_pct(m.hit_ratio):>6}"
        )
        if m.gpu_ms is not None:
            rows.append(f"{'  on the GPU':<49}{_num(m.gpu_ms.p50):>8}{_num(m.gpu_ms.p99):>8}")
    return rows


def _rank_row(r: Rank) -> str:
    step: Quantiles | None = None
    for name in ("DECODE", "TARGET_VERIFY", *r.modes):
        if name in r.modes:
            step = r.modes[name].step_ms
            break
    gap = r.gaps.quantiles_ms.p99 if r.gaps else None
    return (
        f"{r.rank:<12.12}{r.state:<10.10}{'–' if r.last_step is None else r.last_step:>10}"
        f"{_num(r.queue.running):>6}{_num(r.queue.waiting):>6}{_pct(r.kv_usage):>6}"
        f"{_num(step.p50 if step else None):>8}{_num(gap):>9}{_pct(r.cpu_share):>6}"
    )


def _parts(parts: Mapping[str, float], total: float, unit: str) -> str:
    shown = sorted(parts.items(), key=lambda kv: -kv[1])
    return ", ".join(f"{k} {v / total:.0%}" for k, v in shown if v / total >= 0.005) + f" of {_num(total)} {unit}"


def _where(r: Rank, of_group: bool) -> list[str]:
    out = []
    name = f"{r.rank} (most gaps of its group)" if of_group else r.rank
    g = r.gaps
    if g is not None and g.quantiles_ms.count:
        q = g.quantiles_ms
        kind = "between forwards on the GPU" if g.label == "gpu" else "between forwards on the host"
        out += _wrap(
            f"{name} {kind}: {q.count} gaps, p50 {_num(q.p50)} ms, p99 {_num(q.p99)} ms; busy {_pct(g.busy_share)}",
            "  ",
        )
        if g.causes_ms and q.total > 0:
            out += _wrap("  causes: " + _parts(g.causes_ms, q.total, "ms"), "    ")
    total = sum(r.stages_s.values())
    if total > 0:
        out += _wrap(f"{r.rank} main thread: " + _parts(r.stages_s, total, "s"), "  ")
    if r.gc is not None and r.gc.count:
        times = f"{r.gc.count} collection{'' if r.gc.count == 1 else 's'}"
        out.append(f"{r.rank} gc: {times}, {_num(r.gc.total_ms)} ms, longest {_num(r.gc.max_ms)} ms")
    return out


def _findings(alerts: Sequence[Alert]) -> list[str]:
    active = [a for a in alerts if a.active]
    out = ["findings:"] if active else ["findings: none now"] if alerts else ["findings: none"]
    for a in active:
        who = f"{a.rank}: " if a.rank and a.rank not in a.title else ""
        out += _wrap(f"{'!!' if a.severity == 'critical' else ' !'} {who}{a.title}", "   ")
        out += _wrap(f"   {a.evidence}", "   ")
        out += _wrap(f"   → {a.next}", "     ")
    for a in alerts:
        if not a.active:
            out += _wrap(f"   ended meanwhile: {a.title}", "     ")
    return out


def _wrap(line: str, indent: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
