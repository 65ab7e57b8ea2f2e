"""What a flip would cost, before it is done, and what is free. Read on the agent's thread; nothing is changed."""

from __future__ import annotations

from typing import Any

from .. import describe, versions
from ..versions import first
from . import known

MOST_REQUESTS = 64
"""Running requests that are looked at for the mean cached prefix."""
COMPILE = "unknown, seconds: what was never run eager compiles on its first use"


def kv(scheduler: Any) -> tuple[int, int, int] | None:
    """Tokens of the KV pool: held by requests, evictable, in all; None where it cannot be read."""
    try:
        row = describe.queue_reader(scheduler, [0])(0)
        return row[6], row[7], row[8]
    except Exception:
        return None


def gpu_free(scheduler: Any) -> int | None:
    """Bytes that torch could still have: free on the device, and cached by torch but not in use."""
    cuda = versions.cuda(scheduler)
    if cuda is None:
        return None
    try:
        device = describe.gpu_index(scheduler)
        free, _ = cuda.mem_get_info(device)
        return int(free) + int(cuda.memory_reserved(device)) - int(cuda.memory_allocated(device))
    except Exception:
        return None


def _prefix(request: Any) -> int:
    cached = first(request, "cached_tokens")
    if isinstance(cached, int) and cached >= 0:
        return cached
    prefix = first(request, "prefix_len", "prefix_indices", default=0)
    return prefix if isinstance(prefix, int) else len(prefix)


def radix(scheduler: Any) -> dict[str, Any]:
    """Force miss gives every request a copy of its own of what it shares now: running × mean cached prefix."""
    running = list(getattr(getattr(scheduler, "running_batch", None), "reqs", None) or ())
    some = running[:MOST_REQUESTS]
    mean = sum(_prefix(r) for r in some) / len(some) if some else 0.0
    need = int(len(running) * mean)
    pool = kv(scheduler)
    free = pool[2] - pool[0] if pool is not None else None
    text = f"up to {need} more KV tokens ({len(running)} running × {mean:.0f} cached)"
    text += f", {free} are free or evictable" if free is not None else ", what is free is not known"
    refuse = f"{text}: not enough" if free is not None and need > free else ""
    return {"kv_tokens": need, "kv_free": free, "gpu_bytes": 0, "gpu_free": None, "text": text, "refuse": refuse}


def graph(scheduler: Any, bit: int) -> dict[str, Any]:
    """Eager forwards need activations and logits outside of the graphs' pool."""
    config = getattr(scheduler, "model_config", None)
    hf = first(config, "hf_text_config", "hf_config")
    vocab = _int(first(config, "vocab_size", default=first(hf, "vocab_size")))
    hidden = _int(first(config, "hidden_size", default=first(hf, "hidden_size")))
    inner = _int(first(hf, "intermediate_size"), 4 * hidden)
    if bit == known.DECODE:
        rows = _int(first(scheduler, "max_running_requests"), 256)
        logits = rows
        what = f"a batch of {rows}"
    else:
        rows = _int(first(scheduler, "chunked_prefill_size", "max_prefill_tokens"), 8192)
        logits = 256
        what = f"a chunk of {rows} tokens"
    # residual, norm, attention and the two halves of the MLP in two bytes; logits and their float32 copy
    need = rows * (8 * hidden + 3 * inner) * 2 + logits * vocab * 8
    free = gpu_free(scheduler)
    text = f"about {need / 1e6:.0f} MB of GPU memory for {what} run eager"
    text += f", {free / 1e6:.0f} MB are free" if free is not None else ", what is free is not known"
    refuse = f"{text}: not enough" if free is not None and need > free else ""
    return {
        "kv_tokens": 0,
        "kv_free": None,
        "gpu_bytes": need,
        "gpu_free": free,
        "text": f"{text}; time to compile: {COMPILE}",
        "refuse": refuse,
    }


def _int(value: Any, default: int = 0) -> int:
    return value if isinstance(value, int) and value > 0 else default


def plan(scheduler: Any, bit: int) -> dict[str, Any]:
    """The estimate of flipping a switch away. ``refuse``: why it must not be, in words, or empty."""
    return radix(scheduler) if bit == known.RADIX else graph(scheduler, bit)
