"""Frames as a scheduler's agent sends them, made from a seed: shapes, rates and noise of a real server.

Used where a test needs many ranks or an exact count; what real servers send is covered by the recordings of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from sgtop_agent import wire

MODES = {"EXTEND": 1, "DECODE": 2, "MIXED": 3, "IDLE": 4}
START = 1_000_000_000_000
LOOP = ("recv_requests", "process_input_requests", "get_next_batch_to_run", "other", "run_batch", "other",
        "process_batch_result")  # fmt: skip
MEDIAN_US = (14.0, 2.2, 60.0, 3.0, 290.0, 4.0, 170.0)
SPREAD = (0.15, 0.2, 0.12, 0.2, 0.08, 0.2, 0.1)
"""Medians and lognormal sigmas of the segments of one loop, as an 8B model at batch 32 shows them."""


def hello(rank: int, *, gpu: bool = True, tp: int = 8) -> wire.Frame:
    """The agent's hello of TP rank ``rank``."""
    return {
        "k": "hello", "proto": wire.PROTOCOL, "agent": "0.1.0", "way": "pending-call", "token": "", "pid": 4000 + rank,
        "tid": 4000 + rank, "python": "3.11.7", "sglang": "0.5.20", "model": "tiny", "device": "cuda" if gpu else "cpu",
        "rank": {"tp": rank, "pp": 0, "dp": None, "ep": 0, "tp_size": tp, "pp_size": 1, "dp_size": 1, "ep_size": 1},
        "gpu": rank if gpu else -1, "loop": "event_loop_overlap",
        "caps": ["step", "stage", "gc", "queue", "forward", "graph", *(["gpu-events"] if gpu else [])],
        "modes": dict(MODES), "stages": list(wire.STAGES), "args": {"chunked_prefill_size": 2048},
        "graph": {"decode_max_bs": 64 if gpu else None, "decode": gpu, "prefill": False, "verify": None, "draft": None},
        "clock": {"mono_ns": START, "real_ns": 1_790_000_000_000_000_000},
    }  # fmt: skip


@dataclass
class Rank:
    """One rank's stream: ``flush`` gives the frames of the next ``seconds``."""

    rank: int = 0
    steps_per_s: int = 1000
    gpu: bool = True
    prefill_every: int = 50
    seed: int = 1
    now: int = START
    ct: int = 0
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng((self.seed, self.rank))

    def _noise(self, us: float, sigma: float, n: int) -> npt.NDArray[np.int64]:
        return (self._rng.lognormal(np.log(us), sigma, n) * 1000).astype(np.int64)

    def flush(self, seconds: float = 0.05) -> Iterator[wire.Frame]:
        """The frames of the next ``seconds``, in the order in which the agent sends them."""
        n = max(1, round(self.steps_per_s * seconds))
        period = int(seconds * 1e9 / n)
        ct = np.arange(self.ct, self.ct + n)
        self.ct += n
        prefill = ct % self.prefill_every == 0 if self.prefill_every else np.zeros(n, bool)
        seg = np.stack([self._noise(m, s, n) for m, s in zip(MEDIAN_US, SPREAD, strict=True)], 1)
        # the result waits for the GPU; what the step has left of its period, with the GPU's own jitter
        left = period - seg.sum(1) + (self._rng.normal(0, 6, n) * 1000).astype(np.int64)
        seg[:, 6] += np.maximum(left, 0)
        ends = self.now + np.cumsum(seg.ravel())
        begins = np.concatenate([[self.now], ends[:-1]])
        self.now = max(self.now + n * period, int(ends[-1]))
        b, e = begins.reshape(n, 7), ends.reshape(n, 7)
        t0, t1 = b[:, 4] + self._noise(0.7, 0.2, n), e[:, 4] - self._noise(0.5, 0.2, n)
        mode = np.where(prefill, MODES["EXTEND"], MODES["DECODE"])
        bs = np.where(prefill, 1 + ct % 4, 32)
        tokens = np.where(prefill, 512 + ct % 1000, bs)
        f0 = t0 + self._noise(60, 0.1, n)
        f1 = np.minimum(f0 + self._noise(120, 0.08, n), t1)
        g0 = f0 + self._noise(90, 0.05, n)
        g1 = g0 + int(period * 0.78) + (self._rng.normal(0, 4, n) * 1000).astype(np.int64)
        g2 = g1 + 60_000 + (self._rng.normal(0, 1.5, n) * 1000).astype(np.int64)
        unknown = np.full(n, -1)
        graph = np.where(prefill, 0, 1) if self.gpu else unknown
        stage = np.tile([wire.STAGES.index(s) for s in LOOP], n)
        yield _events("stage", stage=stage, t0=begins, t1=ends)
        yield _events(
            "step", ct=ct, mode=mode, t0=t0, t1=t1, bs=bs, tokens=tokens, decode_tokens=np.where(prefill, 0, bs),
            cached=np.where(prefill, 64 * (ct % 7), 0), graph=graph, hook_ns=self._noise(3.5, 0.15, n),
        )  # fmt: skip
        yield _events(
            "forward", ct=ct, runner=np.zeros(n), mode=mode, t0=f0, t1=f1, gpu0=g0 if self.gpu else unknown,
            gpu1=g1 if self.gpu else unknown, gpu2=g2 if self.gpu else unknown, bs=bs, tokens=tokens, graph=graph,
        )  # fmt: skip
        yield _events(
            "result", ct=ct, t=b[:, 6] + self._noise(150, 0.1, n), accepted=unknown,
            finished=(self._rng.random(n) < 0.02).astype(int),
        )  # fmt: skip
        zero = np.zeros(1, int)
        yield _events(
            "queue", t=[self.now], ct=[self.ct], running=[32], waiting=[int(self._rng.integers(0, 5))], grammar=zero,
            oldest_ns=[int(self._rng.integers(0, 10**9))], kv_used=[20_000 + int(self.ct % 4096)], kv_evictable=[3000],
            kv_total=[100_000], retracted=zero, paused=zero, pd_bootstrap=zero, pd_inflight=zero, pd_prealloc=zero,
            pd_transfer=zero,
        )  # fmt: skip
        if self.ct // 300 != (self.ct - n) // 300:
            yield _events("gc", gen=[0], t0=[self.now - 2_000_000], t1=[self.now - 1_600_000], main=[1], collected=[12])
        if self.ct // (self.steps_per_s / 4) != (self.ct - n) // (self.steps_per_s / 4):
            yield {"k": "stat", "t": self.now, "ct": self.ct, "hook_n": n, "hook_p50_ns": 3500, "hook_p99_ns": 6000,
                   "hook_max_ns": 9000, "agent_cpu_ns": self.ct * 900, "lost": {}, "off": {}}  # fmt: skip


def _events(table: str, **columns: npt.ArrayLike) -> wire.Frame:
    """An ``ev`` frame as it comes out of the socket: columns are memoryviews."""
    frame = wire.events(table, {k: np.asarray(v, dtype=np.int64).tolist() for k, v in columns.items()})
    return wire.unpack(wire.pack(frame)[4:])


def stream(
    ranks: int, seconds: float, *, steps_per_s: int = 1000, gpu: bool = True
) -> Iterator[tuple[str, wire.Frame, int]]:
    """(source, frame, receive time) of ``ranks`` ranks, flushed 20 times a second, hellos first."""
    all_ranks = [Rank(i, steps_per_s, gpu) for i in range(ranks)]
    for r in all_ranks:
        yield f"TP{r.rank}", hello(r.rank, gpu=gpu, tp=ranks), START
    for k in range(round(seconds * 20)):
        for r in all_ranks:
            flushed = list(r.flush())
            received = max(START + (k + 1) * 50_000_000, r.now) + 400_000 + 31_000 * r.rank
            for frame in flushed:
                yield f"TP{r.rank}", frame, received
