"""The JSON Schema (draft 2020-12) of ``sgtop --json``; ``sgtop schema`` prints it.

Fields may be added within a version. A field that changes its meaning or goes away raises ``schema``.
"""

from __future__ import annotations

from typing import Any

from sgtop_core.model.snapshot import SCHEMA

S = dict[str, Any]

_STR: S = {"type": "string"}
_BOOL: S = {"type": "boolean"}
_COUNT: S = {"type": "integer", "minimum": 0}
_NUM: S = {"type": "number", "minimum": 0}
_SHARE: S = {"type": "number", "minimum": 0, "maximum": 1}


def _known_or_null(s: S) -> S:
    if "$ref" in s:
        return {"anyOf": [s, {"type": "null"}]}
    return {**s, "type": [s["type"], "null"]}


def _object(doc: str, **fields: S) -> S:
    """An object with exactly these fields at least; more may come."""
    return {"type": "object", "description": doc, "required": list(fields), "properties": fields}


def _map(value: S, doc: str) -> S:
    return {"type": "object", "description": doc, "additionalProperties": value}


def _list(item: S) -> S:
    return {"type": "array", "items": item}


def _ref(name: str) -> S:
    return {"$ref": f"#/$defs/{name}"}


def _doc(s: S, text: str) -> S:
    return {**s, "description": text}


N_STR, N_COUNT, N_NUM, N_SHARE = (_known_or_null(x) for x in (_STR, _COUNT, _NUM, _SHARE))


def _defs() -> S:
    quantiles = _object(
        "Quantiles over the window, at most 2 % off; total and max are exact.",
        count=_COUNT,
        p50=N_NUM,
        p99=N_NUM,
        max=N_NUM,
        total=_NUM,
    )
    histogram = _object(
        "Logarithmic; edges_ms has one more element than counts. What lies outside is in the first and the last.",
        edges_ms=_list(_NUM),
        counts=_list(_COUNT),
    )
    causes = _map(_NUM, "Cause → ms; the parts sum to total_ms.")
    mode = _object(
        "Steps whose batch had this mode.",
        steps=_COUNT,
        steps_per_s=_NUM,
        tokens_per_s=_doc(N_NUM, "EXTEND and MIXED: computed tokens; DECODE: one a request; speculative: accepted."),
        batch=_object("Requests in the batch.", p50=N_NUM, max=N_COUNT),
        step_ms=_ref("quantiles"),
        gpu_ms=_known_or_null(_ref("quantiles")),
        graph_share=_doc(N_SHARE, "Share of steps whose target forward replayed a CUDA graph."),
        cached_tokens_per_s=N_NUM,
        hit_ratio=_doc(N_SHARE, "cached ÷ (cached + computed) prompt tokens."),
    )
    forward = _object(
        "Forwards of one runner and mode.",
        runner={"enum": ["target", "draft"]},
        mode=_STR,
        count=_COUNT,
        host_ms=_ref("quantiles"),
        gpu_ms=_known_or_null(_ref("quantiles")),
        graph_share=N_SHARE,
        tokens_per_s=N_NUM,
    )
    gaps = _object(
        "Time between the end of one forward (kernel) and the start of the next, and its causes.",
        count=_COUNT,
        total_ms=_NUM,
        p50_ms=N_NUM,
        p99_ms=N_NUM,
        max_ms=N_NUM,
        label={"enum": ["gpu", "host", "kernel"]},
        busy_share=_doc(N_SHARE, "Share of the window inside forwards (union of intervals)."),
        causes=_ref("causes"),
        histogram=_known_or_null(_ref("histogram")),
        by_mode=_map(
            {
                "allOf": [
                    _ref("quantiles"),
                    _object("", causes=_ref("causes"), histogram=_known_or_null(_ref("histogram"))),
                ]
            },
            "Gaps before forwards of a mode, ms.",
        ),
    )
    kernel = _object(
        "One kernel name in one mode, in the columns of nsys cuda_gpu_kern_sum.",
        name=_STR,
        full_name=_doc(_STR, "Demangled."),
        category=_STR,
        count=_COUNT,
        total_ms=_NUM,
        share=_SHARE,
        avg_us=_NUM,
        med_us=_NUM,
        min_us=_NUM,
        max_us=_NUM,
        stddev_us=_NUM,
        per_step=N_NUM,
    )
    tracing = _object(
        "Kernel tracing: its state, and sums over the traced time of the window.",
        mode={"enum": ["off", "windows", "on"]},
        state=_doc(_STR, "off, waiting, enabling, tracing, disabling, settling, yielded, failed, unavailable"),
        reason=_doc(_STR, "In words, why it does not trace."),
        window_s=_NUM,
        period_s=_NUM,
        traced_s=_doc(_NUM, "Seconds of tracing in the window."),
        busy_share=_doc(N_SHARE, "busy (union): share of the traced time in which a kernel, copy or set ran."),
        event_busy_share=_doc(N_SHARE, "The same time inside forwards by CUDA events: calibrates gaps of label gpu."),
        communication_share=N_SHARE,
        communication_exposed_share=_doc(N_SHARE, "Communication and nothing else."),
        inflation=_map(_NUM, "Mode → median step time inside the tracing windows ÷ just before and after."),
        categories_ms=_map(_NUM, "Category → ms of kernels."),
        modes=_map(
            _object(
                "Sums of a mode's table.",
                forwards=_COUNT,
                launches=_COUNT,
                launches_per_step=N_NUM,
                total_ms=_NUM,
                graph_share=_doc(N_SHARE, "Share of kernels that ran as nodes of a CUDA graph."),
                hidden=_doc(_COUNT, "Rows left out of the table."),
            ),
            "Mode → sums.",
        ),
        copies=_list(
            _object("Memory copies or sets.", kind=_STR, count=_COUNT, bytes=_COUNT, total_ms=_NUM, gb_per_s=N_NUM)
        ),
        gap_threshold_us=_doc(_NUM, "Kernel gaps below it are kernel wait."),
        records=_COUNT,
        lost_buffers=_COUNT,
        untimed=_doc(_COUNT, "Records without timestamps."),
        cut=_doc(
            _COUNT,
            "Records of forwards that CUPTI told only in part (the end of a window cuts some); in no table.",
        ),
        ring_bytes=_doc(_COUNT, "Memory of the ring in the server's process."),
        cupti=_doc(N_COUNT, "cuptiGetVersion()"),
    )
    place = _object(
        "Where a scheduler may run and runs.",
        cpu=_doc(N_COUNT, "The CPU that its main thread ran on last."),
        allowed_cpus=_list(_COUNT),
        node=_doc(N_COUNT, "NUMA node of that CPU."),
        gpu_node=_doc(N_COUNT, "NUMA node of its GPU."),
        near_cpus=_doc(_list(_COUNT), "CPUs of the GPU's node; empty where there is one node, or it is not known."),
        governor=_doc(N_STR, "Of the CPU's frequency."),
        mhz=N_NUM,
        max_mhz=N_NUM,
        threads=_doc(N_COUNT, "Of the scheduler process."),
        quota_cpus=_doc(N_NUM, "CPUs that its cgroup may use; null without a quota."),
    )
    cpu = _object(
        "What the kernel's scheduler did to the scheduler's main thread.",
        level={"enum": ["A", "B", "C", "D"]},
        message=_STR,
        wait_ms=N_NUM,
        preemptions=N_COUNT,
        longest_ms=N_NUM,
        culprits=_list(
            _object(
                "Who ran instead; no pid: several, or unknown.",
                pid=N_COUNT,
                comm=_STR,
                count=_doc(_COUNT, "Preemptions."),
                ms=_doc(_NUM, "Wait that it caused, also after wake-ups."),
                kind={"enum": ["server", "sgtop", "another-sgtop", "kernel", "other"]},
                certain=_doc(_BOOL, "False at levels C and D: it used that CPU meanwhile."),
                ended=_doc(_BOOL, "It has ended; looked for until some seconds after it ran last."),
            )
        ),
        throttled_ms=_doc(N_NUM, "Held back by its cgroup's quota; not in wait_ms."),
        nr_throttled=_doc(N_COUNT, "Periods in which the cgroup used its quota up."),
        migrations=N_COUNT,
        numa_ok=_known_or_null(_BOOL),
        place=_known_or_null(place),
        seen_s=_doc(N_NUM, "Seconds of the window that these are of."),
    )
    rank = _object(
        "One scheduler process.",
        rank=_STR,
        pid=N_COUNT,
        state={"enum": ["connecting", "live", "starting", "hung", "lost", "elsewhere", "agentless"]},
        message=_STR,
        last_step=_doc(N_COUNT, "forward_ct of the last step."),
        last_step_age_s=N_NUM,
        modes=_map(_ref("mode"), "ForwardMode of the batch → its steps in the window."),
        forwards=_list(_ref("forward")),
        stages_s=_map(_NUM, "Stage → exclusive seconds of the main thread in the window."),
        queue=_object(
            "Latest figures.",
            running=N_COUNT,
            waiting=N_COUNT,
            grammar=N_COUNT,
            oldest_wait_s=N_NUM,
            retracted=N_COUNT,
            pd=_map(_COUNT, "Queues of prefill/decode disaggregation."),
        ),
        kv_usage=N_SHARE,
        finished_per_s=N_NUM,
        graph_max_bs=_doc(N_COUNT, "Largest decode batch that was captured as a graph."),
        cpu_share=N_NUM,
        gaps=_object(
            "Gaps; null where they are not seen.",
            step=_known_or_null(_ref("gaps")),
            kernel=_known_or_null(_ref("gaps")),
        ),
        gc=_known_or_null(_ref("gc")),
        cpu=_known_or_null(_ref("cpu")),
        holds_up_ms=_map(
            _NUM, "What this rank did while others of its group waited for it between forwards: cause → ms."
        ),
        tracing=_known_or_null(_ref("tracing")),
        kernels={
            **_map(_list(_ref("kernel")), "Mode → kernels; null while kernel tracing is off."),
            "type": ["object", "null"],
        },
    )
    gc = _object(
        "Python garbage collections on the main thread in the window.",
        count=_COUNT,
        total_ms=_NUM,
        max_ms=N_NUM,
        by_generation=_map(_COUNT, "Generation → collections."),
    )
    figures = _object(
        "A stretch of steps.",
        steps=_COUNT,
        seconds=_NUM,
        step_ms=_doc(N_NUM, "Median from one decode step to the next."),
        tokens_per_s=N_NUM,
        gap_ms=_doc(N_NUM, "Median gap between decode steps: on the GPU where the agent times it, else on the host."),
        hit_ratio=N_SHARE,
        graph_share=N_SHARE,
    )
    switches = _object(
        "Switches of ranks that change together.",
        group=_doc(_STR, "The rank that leads."),
        ranks=_list(_STR),
        settled=_doc(_BOOL, "Every rank is where the last flip brings it."),
        waits=_doc(_STR, "In words, what a pending flip waits for."),
        switches=_list(
            _object(
                "A switch.",
                name={"enum": ["cuda-graph-decode", "cuda-graph-prefill", "radix-cache"]},
                state={"enum": ["on", "off", "pending"]},
                wanted={"enum": ["on", "off"]},
                available=_BOOL,
                reason=_doc(_STR, "In words, why it is not available."),
                step=_doc(N_COUNT, "forward_ct from which it is off."),
                owner=_doc(_STR, "Who turned it off."),
                left_s=_doc(N_NUM, "Seconds until it goes back by itself; null: kept, or not off."),
            )
        ),
        flips=_list(
            _object(
                "What a flip did, newest last.",
                switch=_STR,
                to={"enum": ["on", "off"]},
                step=_doc(_COUNT, "forward_ct from which it is in force."),
                mono_ns=_COUNT,
                before=_ref("figures"),
                after=_ref("figures"),
            )
        ),
    )
    counters = {
        "kernel_running": _doc(N_SHARE, "nvidia-smi's utilisation: share of time in which a kernel was running."),
        "sm_busy": _doc(N_SHARE, "GPM."),
        "sm_occupancy": _doc(N_SHARE, "GPM."),
        "tensor_busy": _doc(N_SHARE, "GPM."),
        "dram_busy": _doc(N_SHARE, "GPM: DRAM bandwidth ÷ its maximum."),
        "power_w": N_NUM,
        "sm_clock_mhz": N_NUM,
    }
    gpu_mode = _object(
        "Estimate of a GPU's counters while forwards of one mode ran: mean of the readings in the window, weighted "
        "with the mode's GPU time in each.",
        gpu_s=_doc(_NUM, "GPU time of the mode in those readings, s."),
        alone=_doc(_SHARE, "Share of the GPU time in those readings that was this mode's; near 1 it is its own."),
        **counters,
    )
    gpu = _object(
        "One GPU or MIG slice. What the driver does not say is null.",
        index=_COUNT,
        uuid=_STR,
        name=_STR,
        ranks=_list(_STR),
        mono_ns=_doc(N_COUNT, "When it was read, CLOCK_MONOTONIC."),
        **counters,
        by_mode=_map(_ref("gpu_mode"), "Forward mode → estimates; empty where GPU times of forwards are not known."),
    )
    process = _object(
        "A helper process of the server.", role=_STR, pid=_COUNT, cpu_share=N_NUM, rss_bytes=N_COUNT, threads=N_COUNT
    )
    alert = _object(
        "A finding.",
        id=_STR,
        severity={"enum": ["info", "warning", "critical"]},
        since=_doc(_NUM, "Unix seconds."),
        rank=N_STR,
        title=_STR,
        evidence=_STR,
        next=_STR,
        active=_BOOL,
        quiet_s=_doc(_NUM, "Seconds since it was last found: so old are its title and evidence."),
    )
    return {
        "quantiles": quantiles,
        "histogram": histogram,
        "causes": causes,
        "mode": mode,
        "forward": forward,
        "gaps": gaps,
        "kernel": kernel,
        "tracing": tracing,
        "cpu": cpu,
        "rank": rank,
        "gc": gc,
        "gpu": gpu,
        "gpu_mode": gpu_mode,
        "process": process,
        "alert": alert,
        "figures": figures,
        "switches": switches,
    }


def schema() -> S:
    """The schema of one snapshot."""
    top = _object(
        "One snapshot of a running SGLang server. What is not known is null, never 0.",
        schema={"const": SCHEMA},
        time=_doc(_NUM, "Unix seconds."),
        window_s=_NUM,
        covered_s=_doc(_NUM, "Seconds of the window that hold data; rates are per second of these."),
        server=_object(
            "The server.",
            host=_STR,
            port=N_COUNT,
            pid=N_COUNT,
            model=N_STR,
            sglang_version=N_STR,
            tp=N_COUNT,
            dp=N_COUNT,
            pp=N_COUNT,
            ep=N_COUNT,
            device=N_STR,
            ranks_elsewhere=_list(_STR),
        ),
        attach={
            "enum": ["plugin", "pep768", "pending-call", "run", "agentless", "simulated", None],
            "description": "How sgtop got in.",
        },
        state={
            "enum": ["connecting", "starting", "live", "hung", "lost", "waiting", "agentless", "replay"],
            "description": "State of the connection as a whole.",
        },
        message=_STR,
        ranks=_list(_ref("rank")),
        gpus=_list(_ref("gpu")),
        processes=_list(_ref("process")),
        overhead=_object(
            "What sgtop costs, measured.",
            hook_us_per_step=_object("Main-thread time in sgtop's hooks a step, µs.", p50=N_NUM, p99=N_NUM),
            client_cpu_share=_doc(N_NUM, "sgtop's own process; 1 is one core."),
            agent_cpu_share=_doc(N_NUM, "The agent's thread of the worst rank; 1 is one core."),
        ),
        lost=_map(_COUNT, "Table → rows lost since attaching."),
        alerts=_list(_ref("alert")),
        switches=_doc(_list(_ref("switches")), "A group each in which some client has armed the switches."),
        log=_list(_STR),
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:sgtop:snapshot:{SCHEMA}",
        "title": "sgtop snapshot",
        **top,
        "$defs": _defs(),
    }
