"""Figures as plain tables: a title, a head and rows. Text, CSV and nothing else is made from them."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sgtop_core.model.snapshot import Quantiles

from .figures import REST, Figures, RankFigures

Value = str | int | float | None
TRACED = "traced s"
"""Column of the kernel table, the same in all rows of a rank: for CSV, which has no title to say it."""
IDS = frozenset({"pid"})
"""Columns of whole numbers that are names, not quantities: written as they are."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table; ``key`` names it on the command line."""

    key: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


def _q(q: Quantiles | None) -> tuple[Value, ...]:
    return (None, None, None) if q is None else (q.p50, q.p99, q.max)


def _share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def tables(f: Figures) -> tuple[Table, ...]:
    """All tables of a recording; one without rows is left out of the text, and has only a head as CSV."""

    def rows(make: Any) -> tuple[tuple[Value, ...], ...]:
        return tuple((r.rank, *row) for r in f.ranks for row in make(r))

    return (
        Table(
            "steps", "Steps by mode",
            ("rank", "mode", "steps", "steps/s", "tokens/s", "batch p50", "batch max", "step p50 ms", "step p99 ms",
             "step max ms", "GPU p50 ms", "GPU p99 ms", "graph %", "cache hits %"),
            rows(_steps),
        ),
        Table(
            "forwards", "Forwards",
            ("rank", "runner", "mode", "forwards", "host p50 ms", "host p99 ms", "host max ms", "GPU p50 ms",
             "GPU p99 ms", "GPU max ms"),
            rows(lambda r: ((x.runner, x.mode, x.count, *_q(x.host_ms), *_q(x.gpu_ms)) for x in r.forwards)),
        ),
        Table(
            "gaps", "Gaps between forwards by cause",
            ("rank", "cause", "ms", "% of gaps", "% of time"),
            rows(lambda r: (
                (cause, ms, _share(ms, sum(r.causes_ms.values())), _share(ms / 1e3, r.seconds))
                for cause, ms in r.causes_ms.items()
            )),
        ),
        Table(
            "stages", "Main thread by stage (exclusive)",
            ("rank", "stage", "s", "% of time"),
            rows(lambda r: ((stage, s, _share(s, r.seconds)) for stage, s in r.stages_s.items())),
        ),
        Table(
            "gc", "Garbage collection on the main thread",
            ("rank", "generation", "collections", "total ms", "p50 ms", "p99 ms", "max ms"),
            rows(lambda r: ((g, q.count, q.total, *_q(q)) for g, q in r.gc.items())),
        ),
        Table("contention", "Who took the CPU", ("rank", "level", "process", "pid", "times", "ms"), rows(_contention)),
        Table(
            "kernels", f"Kernels (columns as in nsys cuda_gpu_kern_sum), {_traced(f)}",
            ("rank", "mode", "time %", "total ms", "instances", "avg us", "med us", "min us", "max us", "stddev us",
             "a step", TRACED, "category", "name"),
            rows(lambda r: (
                (k.mode, 100 * k.share, k.total_ms, k.count, k.avg_us, k.med_us, k.min_us, k.max_us, k.stddev_us,
                 k.per_step, r.traced.traced_s, k.category, k.name)
                for k in r.kernels
            )),
        ),
        Table(
            "queues", "Queues",
            ("rank", "queue", "mean", "max"),
            rows(lambda r: ((name, mean, top) for name, (mean, top) in r.queue.items())),
        ),
        Table(
            "alerts", "Findings",
            ("severity", "rank", "id", "held s", "finding", "evidence", "next step"),
            tuple(
                (a.alert.severity, a.alert.rank, a.alert.id, a.seconds, a.alert.title, a.alert.evidence, a.alert.next)
                for a in f.alerts
            ),
        ),
    )  # fmt: skip


def _traced(f: Figures) -> str:
    """What time the kernel tables cover: of every rank, or the least and the most where they differ."""
    covers = [r.traced for r in f.ranks if r.kernels]
    seconds = sorted(c.traced_s for c in covers)
    if not seconds:
        return "nothing traced"
    low, high = (f"{s:.2f}" for s in (seconds[0], seconds[-1]))
    most = max(c.stretches for c in covers)
    text = f"{low if low == high else f'{low} to {high}'} s traced" + (f" in {most} stretches" if most > 1 else "")
    if not all(c.whole for c in covers):
        text += "; the newest table only, which may reach back to before the recording"
    return text


def _steps(r: RankFigures) -> Iterator[tuple[Value, ...]]:
    for mode, m in sorted(r.modes.items(), key=lambda kv: -kv[1].step_ms.total):
        gpu = m.gpu_ms
        yield (
            mode, m.steps, m.steps_per_s, m.tokens_per_s, m.batch_p50, m.batch_max, *_q(m.step_ms),
            None if gpu is None else gpu.p50, None if gpu is None else gpu.p99,
            None if m.graph_share is None else 100 * m.graph_share,
            None if m.hit_ratio is None else 100 * m.hit_ratio,
        )  # fmt: skip


def _contention(r: RankFigures) -> Iterator[tuple[Value, ...]]:
    c = r.contention
    if c is None:
        return
    totals = (
        ("(preemptions in all)", c.preemptions, c.wait_ms),
        ("(throttled by the cgroup)", None, c.throttled_ms),
        ("(migrations)", c.migrations, None),
    )
    for what, n, ms in totals:
        if n or ms:
            yield c.level, what, None, n, ms
    for k in c.culprits:
        yield c.level, k.comm, k.pid, k.count, k.ms
    if c.others is not None:
        yield c.level, REST, None, c.others.count, c.others.ms


def number(v: Value) -> str:
    """A value for people: three or four figures, ``–`` where it is not known."""
    if v is None:
        return "–"
    if isinstance(v, str):
        return v
    if isinstance(v, int):
        return f"{v:,}".replace(",", " ")
    a = abs(v)
    return f"{v:.0f}" if a >= 1000 else f"{v:.1f}" if a >= 100 else f"{v:.2f}" if a >= 1 or a == 0 else f"{v:.3g}"


def grid(head: Sequence[str], rows: Sequence[Sequence[Value]]) -> Iterator[str]:
    """Lines of a table: numbers to the right, words to the left, the last column as it is."""
    cells = [
        [str(v) if name in IDS and v is not None else number(v) for name, v in zip(head, row, strict=True)]
        for row in rows
    ]
    words = [any(isinstance(row[i], str) for row in rows) for i in range(len(head))]
    widths = [max(len(h), *(len(c[i]) for c in cells)) if cells else len(h) for i, h in enumerate(head)]

    def line(values: Sequence[str]) -> str:
        parts = [v.ljust(w) if left else v.rjust(w) for v, w, left in zip(values, widths, words, strict=True)]
        return "  ".join(parts).rstrip()

    yield line(head)
    for c in cells:
        yield line(c)


def as_csv(t: Table) -> str:
    """A table as CSV; values unrounded, unknown ones empty."""
    out = io.StringIO()
    w = csv.writer(out, lineterminator="\n")
    w.writerow(t.head)
    w.writerows([["" if v is None else v for v in row] for row in t.rows])
    return out.getvalue()


def as_json(f: Figures) -> dict[str, Any]:
    """The figures as they are; a map's keys are strings."""
    out: dict[str, Any] = {"report": 1, **_plain(dataclasses.asdict(f))}
    return out


def _plain(v: Any) -> Any:
    if isinstance(v, dict):
        return {str(k): _plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [_plain(x) for x in v]
    return v
