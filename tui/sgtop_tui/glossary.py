"""What every number means and how it is measured: the one home of the text that ``e`` shows and docs/glossary.md holds.

``python -m sgtop_tui.docs`` writes the page; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from sgtop_core.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Term:
    """One word of the screen."""

    name: str
    means: str
    measured: str
    unknown: str = ""
    """Why it may be –."""


_AGENT = "the agent is not in the scheduler (agentless), or no step ran in the window"

TERMS: tuple[Term, ...] = (
    Term(
        "step",
        "One run_batch of the scheduler: one batch goes through the model. forward_ct counts them.",
        "From the result of the step before to its own result; from its entry into run_batch where the loop had rested "
        "in between; entry to entry where an event loop shows no results. Every step, none sampled. p50 and p99 over "
        "the window.",
        _AGENT,
    ),
    Term(
        "forward",
        "A child of a step: one forward of a runner (target or draft) in a mode. Speculative decoding has several a "
        "step.",
        "Entry and return of the runner's forward or graph replay, on the host; GPU times where there are CUDA events.",
        _AGENT,
    ),
    Term(
        "mode strip",
        "What a rank did, slice by slice: the letter is the mode that took most of the slice. Newest at the right.",
        "From every step's begin and end. A blank is time before sgtop was attached, or after it lost the connection.",
        _AGENT,
    ),
    Term(
        "eager",
        "A decode or verify step whose kernels were launched one by one, though the server has captured CUDA graphs.",
        "The runner's own graph test, as it answered for that step.",
        "this version's graph test was not found",
    ),
    Term(
        "kernel",
        "One GPU kernel, by name, in one forward mode: the columns of nsys' cuda_gpu_kern_sum, and launches a step.",
        "Every kernel, copy and set while kernel tracing is on, from CUPTI's activity records; in windows of 1 s in "
        "10 s, or continuously (k). A kernel belongs to the forward that was on the GPU at that time.",
        "kernel tracing is off, or cannot be had here: the panel says why",
    ),
    Term(
        "kernel gap",
        "The GPU was idle: from the end of everything before, on any stream, to the start of the next kernel or copy.",
        "From CUPTI's activity records. host wait: the GPU was idle before the host began to launch that forward; "
        "kernel wait: shorter than the threshold shown; other: the rest; preempted, throttled, gc, no work: what "
        "happened to the scheduler's main thread meanwhile.",
        "kernel tracing is off",
    ),
    Term(
        "captured",
        "The largest decode batch for which the server captured a CUDA graph. Larger batches run eager.",
        "Read from the running server's graph runner.",
        "no graphs: the server runs on a CPU, or with graphs disabled",
    ),
    Term(
        "graph share",
        "Share of steps in the window whose target forward replayed a CUDA graph.",
        "Steps with a replay ÷ steps whose kind is known.",
        "no graphs are captured, or the graph test was not found",
    ),
    Term(
        "tok/s",
        "Prefill: prompt tokens computed a second (cached ones not counted). Decode: tokens generated a second. "
        "Summed over "
        "DP ranks; TP and PP ranks compute the same tokens and are counted once.",
        "From the batch of every step: extend lengths in prefill, batch size in decode, accepted tokens in verify.",
        _AGENT,
    ),
    Term(
        "batch",
        "Requests in the decode batch: the median and the largest of the window, on the busiest DP rank.",
        "Read from the batch before each step.",
        _AGENT,
    ),
    Term(
        "hit",
        "Share of prompt tokens that came from the prefix cache: cached ÷ (cached + computed).",
        "From prefix and extend lengths of the requests that started in the window.",
        "no request started in the window",
    ),
    Term(
        "mixed",
        "Steps that prefill one chunk and decode the running requests together (chunked prefill with mixing on).",
        "ForwardMode MIXED.",
    ),
    Term(
        "accepted",
        "Tokens a request gains a step in speculative decoding, about: tokens/s ÷ (steps/s × median batch).",
        "From the results of verify.",
        "not speculative",
    ),
    Term(
        "gpu",
        "Time of the forward on the GPU's stream, p50 and p99.",
        "CUDA events just before and just after the forward, read with query(), never synchronised.",
        "there is no GPU, or the agent is not in the scheduler",
    ),
    Term(
        "in forwards",
        "Share of the window inside forwards. (GPU, union): between the events of the forwards on the GPU, overlaps "
        "counted "
        "once. (host): inside the forward call on the main thread, where there is no GPU.",
        "Union of the forwards' intervals ÷ the window.",
        _AGENT,
    ),
    Term(
        "between forwards",
        "The rest of the window. It is not quite GPU idle time: only kernel tracing can say that word.",
        "1 − in forwards.",
        _AGENT,
    ),
    Term("union", "Overlapping intervals are counted once.", "Sorted by begin and merged."),
    Term(
        "gap",
        "Time from the end of one forward to the start of the next. `host` gaps are taken on the main thread.",
        "Every gap of the window, in a log-scaled histogram; p50, p99 and maximum from it.",
        _AGENT,
    ),
    Term(
        "causes",
        "What filled the gaps; the parts sum to them. no work: queues empty. preempted: another task had the CPU. "
        "throttled: "
        "the cgroup's quota. gc: Python's collector. blocked: a copy, sync or lock. waiting for rank N: a peer was "
        "late. Else "
        "a stage of the scheduler by SGLang's own name.",
        "Stages, GC and (where allowed) kernel scheduling events laid over each gap.",
        "no cause sampling on this host: the main thread's stages are shown instead",
    ),
    Term(
        "stages",
        "The scheduler's main thread by stage, exclusive: time in an inner stage is not counted in the outer one. "
        "idle: the "
        "loop found no work.",
        "Entry and return of SGLang's own methods. They sum to the window.",
        _AGENT,
    ),
    Term(
        "gc",
        "Python garbage collections on the scheduler's main thread: how many in the window, and the longest. All work "
        "stops.",
        "gc.callbacks in the scheduler.",
        _AGENT,
    ),
    Term(
        "waiting",
        "Requests in the waiting queue, all DP ranks; running: requests in the running batch.",
        "Read from the scheduler at most 10 times a second; agentless from /metrics.",
        "the server says nothing about it (agentless without --enable-metrics)",
    ),
    Term(
        "oldest",
        "Age of the request that has waited longest.",
        "From the queue's own time stamps, 10 times a second at most.",
        "nothing waits, or the agent is not in the scheduler",
    ),
    Term(
        "kv",
        "Share of the KV pool that running requests hold and that cannot be evicted; the fullest rank.",
        "Pool's own counters.",
        "agentless without --enable-metrics",
    ),
    Term(
        "cpu",
        "CPU of a process, 100% = one core. A scheduler that spins while idle shows 100%: that is normal.",
        "/proc/PID/stat over the last second.",
        "the process is in another pid namespace, or gone",
    ),
    Term(
        "rank",
        "One scheduler process. TP, PP, DP and EP numbers as SGLang gives them.",
        "Process titles and the agent's hello.",
    ),
    Term(
        "out of line",
        "△ marks a rank whose figure is more than 1.25 times the median of all ranks (and 0.5 ms above it).",
        "Compared within the window.",
    ),
    Term(
        "cpu wait",
        "Time that the scheduler's main thread was ready to run and had no CPU, a second of the window.",
        "Kernel scheduling events of that thread (levels A to C) or its schedstat (level D).",
        "this user or container may not read it: sgtop doctor says what is missing",
    ),
    Term(
        "preempted",
        "How often another task was put on the scheduler's CPU while it still had work. by: who ran meanwhile, how "
        "often and for how long; ~ marks a suspect, known only by the CPU time that it used.",
        "sched_switch: the thread was switched out while runnable.",
        "as for cpu wait",
    ),
    Term(
        "level",
        "How the waits are seen. A: every switch, with who ran. B: the same from CPU-wide records. C: own threads. "
        "D: sums from /proc. The best that is allowed here is used; the line below the rows says what the next needs.",
        "Tried in that order when sgtop attaches.",
    ),
    Term(
        "throttled",
        "The cgroup had used its CPU quota up and the scheduler had to wait for the next period.",
        "cpu.stat of the cgroup, versions 1 and 2.",
        "no quota, or its file cannot be read",
    ),
    Term(
        "NUMA",
        "A mark where the scheduler runs on another NUMA node than its GPU.",
        "The CPU it ran on last against the node of the GPU's PCI device.",
        "one node, no GPU, or the host does not say",
    ),
    Term(
        "SM busy",
        "Share of time in which the GPU's multiprocessors had work, averaged over them. DRAM, tensor and occupancy "
        "likewise.",
        "NVML's GPM counters, Hopper and later, by sgtop's own process.",
        "an older GPU, or the driver refuses",
    ),
    Term(
        "estimate by mode",
        "What the counters were while forwards of one mode ran: the mean of the window's readings, each weighted with "
        "the mode's GPU time in it. alone: how much of the GPU time in those readings was this mode's; the lower, the "
        "more of the others is in the figure.",
        "readings of the GPU once a second, and the agent's GPU times of forwards.",
        "GPU times of forwards are not known, or no reading is new enough",
    ),
    Term(
        "kernel ran",
        "nvidia-smi's utilisation: share of time in which any kernel was running, however small.",
        "NVML.",
        "the driver does not say",
    ),
    Term(
        "throttle reason",
        "Why the clocks are lower than they could be; only what makes a busy GPU slower is shown.",
        "NVML's clock event reasons.",
    ),
    Term(
        "processes",
        "Tokenizer (with the HTTP server), detokenizer and DP controller. Python runs on one core: near 100% one of "
        "them is "
        "the bottleneck, whatever the GPU does.",
        "/proc, once a second.",
        "in another pid namespace",
    ),
    Term(
        "finding",
        "What is wrong, with its evidence, and after → the next thing to do; it can be pasted. ▲ hurts users now, △ "
        "will or "
        "may. No finding does not prove health: it means that none of the known patterns is there.",
        "Rules over the window; docs/findings.md has each with its threshold.",
    ),
    Term(
        "latched",
        "A finding stays while its cause comes and goes, and is shown as ended for a while afterwards.",
        "On and off at different thresholds.",
    ),
    Term(
        "cost",
        "What sgtop takes inside the busiest scheduler process, in share of one core: its hooks on the main thread "
        "and its "
        "own thread.",
        "Hooks: median time a step, measured around each hook, × steps a second. Thread: its CPU clock.",
        "no step ran yet, or the agent is not in the scheduler",
    ),
    Term(
        "lost",
        "Events that did not fit into the agent's bounded rings since attaching. Figures of that time are too low.",
        "Counted by the agent, never guessed.",
    ),
    Term(
        "idle",
        "The scheduler found nothing to do.",
        "get_next_batch_to_run gave nothing and the queues were empty.",
    ),
    Term("paused", "The engine is paused (pause_generation, weight update).", "The scheduler's own flag."),
    Term(
        "log",
        "Notes of sgtop and its agents, and audit lines of everything that changed the server.",
        "As it happened.",
    ),
)

BY_NAME: dict[str, Term] = {term.name: term for term in TERMS}


def reasons(snap: Snapshot) -> list[str]:
    """Why figures are – on this server now, in words; empty when all that exists is known."""
    out: list[str] = []
    if snap.attach.state == "agentless":
        why = snap.attach.message or "sgtop could not enter the scheduler"
        out.append(
            f"Agentless: {why}. Steps, stages, gaps and graphs need the agent; `sgtop doctor` says what is missing."
        )
    if snap.attach.state in ("starting", "connecting"):
        out.append("No figures yet: the server is starting, or sgtop is attaching.")
    if snap.server.device == "cpu":
        out.append("No GPU: gpu times, graph share and captured sizes do not exist here; gaps are host gaps.")
    live = [r for r in snap.ranks if r.state == "live"]
    if live and not any(m.steps for r in live for m in r.modes.values()):
        out.append("No step ran in the window: there is no traffic.")
    if live and snap.server.device not in (None, "cpu") and not any(m.gpu_ms for r in live for m in r.modes.values()):
        out.append("GPU times are not measured: no CUDA events on this version or device.")
    if snap.server.ranks_elsewhere:
        out.append(f"Ranks on other hosts are not measured: {', '.join(snap.server.ranks_elsewhere)}.")
    return out


def document() -> str:
    """The glossary as a page of docs."""
    lines = [
        "# Glossary",
        "",
        "What every number on the screen means and how it is measured; `e` shows the same text.",
        "",
    ]
    lines += ["Made by `python -m sgtop_tui.docs`; do not edit.", ""]
    for term in sorted(TERMS, key=lambda t: t.name.casefold()):
        lines += [f"## {term.name}", "", term.means, "", f"*Measured:* {term.measured}", ""]
        if term.unknown:
            lines += [f"*– means:* {term.unknown}.", ""]
    return "\n".join(lines).rstrip() + "\n"
