"""A snapshot as JSON: the documented, versioned output of ``--json`` and ``--once --json`` (docs/json.md).

What is not known is null, never 0. Units stand in the names. ``schema.py`` describes the result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from sgtop_core.model.figures import Figures
from sgtop_core.model.kernel_view import KernelView
from sgtop_core.model.snapshot import (
    GC,
    SCHEMA,
    Alert,
    Cpu,
    Culprit,
    Forward,
    Gpu,
    GpuMode,
    Histogram,
    Kernel,
    Mode,
    Place,
    Process,
    Quantiles,
    Rank,
    Snapshot,
    StepGaps,
)
from sgtop_core.model.switch_view import SwitchGroup

Json = dict[str, Any]


def as_json(s: Snapshot) -> Json:
    """The whole snapshot."""
    return {
        "schema": SCHEMA,
        "time": round(s.time, 3),
        "window_s": s.window_s,
        "covered_s": _n(s.covered_s),
        "server": {
            "host": s.server.host,
            "port": s.server.port,
            "pid": s.server.pid,
            "model": s.server.model,
            "sglang_version": s.server.sglang_version,
            "tp": s.server.tp,
            "dp": s.server.dp,
            "pp": s.server.pp,
            "ep": s.server.ep,
            "device": s.server.device,
            "ranks_elsewhere": list(s.server.ranks_elsewhere),
        },
        "attach": s.attach.way,
        "state": s.attach.state,
        "message": s.attach.message,
        "ranks": [rank(r) for r in s.ranks],
        "gpus": [_gpu(g) for g in s.gpus],
        "processes": [_process(p) for p in s.processes],
        "overhead": {
            "hook_us_per_step": {"p50": _n(s.overhead.hook_us_p50), "p99": _n(s.overhead.hook_us_p99)},
            "client_cpu_share": _n(s.overhead.client_cpu_share),
            "agent_cpu_share": _n(s.overhead.agent_cpu_share),
        },
        "lost": dict(s.lost),
        "alerts": [_alert(a) for a in s.alerts],
        "switches": [_switches(g) for g in s.switches],
        "log": list(s.log),
    }


def line(s: Snapshot) -> str:
    """The snapshot as one line of JSON, without the newline."""
    return json.dumps(as_json(s), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def rank(r: Rank) -> Json:
    """One rank."""
    return {
        "rank": r.rank,
        "pid": r.pid,
        "state": r.state,
        "message": r.message,
        "last_step": r.last_step,
        "last_step_age_s": _n(r.last_step_age_s),
        "modes": {name: _mode(m) for name, m in r.modes.items()},
        "forwards": [_forward(f) for f in r.forwards],
        "stages_s": {k: _n(v) for k, v in r.stages_s.items()},
        "queue": {
            "running": r.queue.running,
            "waiting": r.queue.waiting,
            "grammar": r.queue.grammar,
            "oldest_wait_s": _n(r.queue.oldest_wait_s),
            "retracted": r.queue.retracted,
            "pd": dict(r.queue.pd),
        },
        "kv_usage": _n(r.kv_usage),
        "finished_per_s": _n(r.finished_per_s),
        "graph_max_bs": r.graph_max_bs,
        "cpu_share": _n(r.cpu_share),
        "gaps": {"step": gaps(r.gaps), "kernel": gaps(r.kernel_gaps)},
        "gc": _gc(r.gc),
        "cpu": _cpu(r.cpu),
        "holds_up_ms": _ms(r.holds_up_ms),
        "tracing": None if r.tracing is None else _tracing(r.tracing),
        "kernels": None if r.kernels is None else {m: [_kernel(k) for k in ks] for m, ks in r.kernels.items()},
    }


def _switches(g: SwitchGroup) -> Json:
    return {
        "group": g.name,
        "ranks": list(g.ranks),
        "settled": g.settled,
        "waits": g.waits,
        "switches": [
            {
                "name": s.name,
                "state": s.state,
                "wanted": s.wanted,
                "available": s.available,
                "reason": s.reason,
                "step": s.step,
                "owner": s.owner,
                "left_s": _n(s.left_s),
            }
            for s in g.switches
        ],
        "flips": [
            {
                "switch": f.switch,
                "to": f.to,
                "step": f.step,
                "mono_ns": f.mono_ns,
                "before": _figures(f.before),
                "after": _figures(f.after),
            }
            for f in g.flips
        ],
    }


def _figures(f: Figures) -> Json:
    return {
        "steps": f.steps,
        "seconds": _n(f.seconds),
        "step_ms": _n(f.step_ms),
        "tokens_per_s": _n(f.tokens_per_s),
        "gap_ms": _n(f.gap_ms),
        "hit_ratio": _n(f.hit_ratio),
        "graph_share": _n(f.graph_share),
    }


def _n(v: float | None) -> float | None:
    """Nine significant digits: more is noise, and lines stay short."""
    if v is None or not math.isfinite(v):
        return None
    return v if isinstance(v, int) else float(f"{v:.9g}")


def _quantiles(q: Quantiles | None) -> Json | None:
    if q is None:
        return None
    return {"count": q.count, "p50": _n(q.p50), "p99": _n(q.p99), "max": _n(q.max), "total": _n(q.total)}


def _mode(m: Mode) -> Json:
    return {
        "steps": m.steps,
        "steps_per_s": _n(m.steps_per_s),
        "tokens_per_s": _n(m.tokens_per_s),
        "batch": {"p50": _n(m.batch_p50), "max": m.batch_max},
        "step_ms": _quantiles(m.step_ms),
        "gpu_ms": _quantiles(m.gpu_ms),
        "graph_share": _n(m.graph_share),
        "cached_tokens_per_s": _n(m.cached_tokens_per_s),
        "hit_ratio": _n(m.hit_ratio),
    }


def _forward(f: Forward) -> Json:
    return {
        "runner": f.runner,
        "mode": f.mode,
        "count": f.count,
        "host_ms": _quantiles(f.host_ms),
        "gpu_ms": _quantiles(f.gpu_ms),
        "graph_share": _n(f.graph_share),
        "tokens_per_s": _n(f.tokens_per_s),
    }


def gaps(g: StepGaps | None) -> Json | None:
    """Gaps with their causes; None where they are not seen."""
    if g is None:
        return None
    q = g.quantiles_ms
    return {
        "count": q.count,
        "total_ms": round(q.total, 6),
        "p50_ms": _n(q.p50),
        "p99_ms": _n(q.p99),
        "max_ms": _n(q.max),
        "label": g.label,
        "busy_share": _n(g.busy_share),
        "causes": _ms(g.causes_ms),
        "histogram": _histogram(g.histogram),
        "by_mode": {
            mode: {
                **(_quantiles(x) or {}),
                "causes": _ms(g.causes_by_mode_ms.get(mode, {})),
                "histogram": _histogram(g.histograms.get(mode)),
            }
            for mode, x in g.by_mode.items()
        },
    }


def _ms(causes: Mapping[str, float]) -> dict[str, float | None]:
    # to the nanosecond, so that the parts still sum to the total
    return {name: round(ms, 6) for name, ms in causes.items()}


def _histogram(h: Histogram | None) -> Json | None:
    return None if h is None else {"edges_ms": [_n(e) for e in h.edges_ms], "counts": list(h.counts)}


def _gc(g: GC | None) -> Json | None:
    if g is None:
        return None
    by = {str(gen): n for gen, n in sorted(g.by_generation.items())}
    return {"count": g.count, "total_ms": _n(g.total_ms), "max_ms": _n(g.max_ms), "by_generation": by}


def _cpu(c: Cpu | None) -> Json | None:
    if c is None:
        return None
    return {
        "level": c.level,
        "message": c.message,
        "wait_ms": _n(c.wait_ms),
        "preemptions": c.preemptions,
        "longest_ms": _n(c.longest_ms),
        "culprits": [_culprit(x) for x in c.culprits],
        "throttled_ms": _n(c.throttled_ms),
        "nr_throttled": c.nr_throttled,
        "migrations": c.migrations,
        "numa_ok": c.numa_ok,
        "place": _place(c.place),
        "seen_s": _n(c.seen_s),
    }


def _culprit(c: Culprit) -> Json:
    return {
        "pid": c.pid if c.pid >= 0 else None,
        "comm": c.comm,
        "count": c.count,
        "ms": _n(c.ms),
        "kind": c.kind,
        "certain": c.certain,
        "ended": c.ended,
    }


def _place(p: Place | None) -> Json | None:
    if p is None:
        return None
    return {
        "cpu": p.cpu,
        "allowed_cpus": list(p.allowed_cpus),
        "node": p.node,
        "gpu_node": p.gpu_node,
        "near_cpus": list(p.near_cpus),
        "governor": p.governor,
        "mhz": _n(p.mhz),
        "max_mhz": _n(p.max_mhz),
        "threads": p.threads,
        "quota_cpus": _n(p.quota_cpus),
    }


def _kernel(k: Kernel) -> Json:
    return {
        "name": k.name,
        "full_name": k.full_name,
        "category": k.category,
        "count": k.count,
        "total_ms": _n(k.total_ms),
        "share": _n(k.share),
        "avg_us": _n(k.avg_us),
        "med_us": _n(k.med_us),
        "min_us": _n(k.min_us),
        "max_us": _n(k.max_us),
        "stddev_us": _n(k.stddev_us),
        "per_step": _n(k.per_step),
    }


def _tracing(v: KernelView) -> Json:
    return {
        "mode": v.mode,
        "state": v.state,
        "reason": v.reason,
        "window_s": _n(v.window_s),
        "period_s": _n(v.period_s),
        "traced_s": _n(v.traced_s),
        "busy_share": _n(v.busy_share),
        "event_busy_share": _n(v.event_busy_share),
        "communication_share": _n(v.communication_share),
        "communication_exposed_share": _n(v.communication_exposed_share),
        "inflation": {mode: _n(x) for mode, x in v.inflation.items()},
        "categories_ms": {name: _n(x) for name, x in v.categories_ms.items()},
        "modes": {
            m.mode: {
                "forwards": m.forwards,
                "launches": m.launches,
                "launches_per_step": _n(m.launches_per_step),
                "total_ms": _n(m.total_ms),
                "graph_share": _n(m.graph_share),
                "hidden": m.hidden,
            }
            for m in v.modes
        },
        "copies": [
            {
                "kind": c.kind,
                "count": c.count,
                "bytes": c.bytes,
                "total_ms": _n(c.total_ms),
                "gb_per_s": _n(c.gb_per_s),
            }
            for c in v.copies
        ],
        "gap_threshold_us": _n(v.threshold_us),
        "records": v.records,
        "lost_buffers": v.lost_buffers,
        "untimed": v.untimed,
        "cut": v.cut,
        "ring_bytes": v.ring_bytes,
        "cupti": v.cupti,
    }


def _gpu(g: Gpu) -> Json:
    out: Json = {name: getattr(g, name) for name in Gpu.__dataclass_fields__}
    out["ranks"], out["throttle_reasons"] = list(g.ranks), list(g.throttle_reasons)
    out["by_mode"] = {
        mode: {name: _n(getattr(m, name)) for name in GpuMode.__dataclass_fields__} for mode, m in g.by_mode.items()
    }
    return {k: _n(v) if isinstance(v, float) else v for k, v in out.items()}


def _process(p: Process) -> Json:
    return {
        "role": p.role,
        "pid": p.pid,
        "cpu_share": _n(p.cpu_share),
        "rss_bytes": p.rss_bytes,
        "threads": p.threads,
    }


def _alert(a: Alert) -> Json:
    return {
        "id": a.id,
        "severity": a.severity,
        "since": round(a.since, 3),
        "rank": a.rank,
        "title": a.title,
        "evidence": a.evidence,
        "next": a.next,
        "active": a.active,
        "quiet_s": round(a.quiet_s, 3),
    }
