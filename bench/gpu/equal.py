"""The ten largest kernels of decode by sgtop and by torch's profiler, over the same steps of the same generation.

    python bench/gpu/equal.py [--bs 1] [--rounds 5] [--seconds 0.4]

A round generates twice from the same prompts, greedily: the first time sgtop traces, the second time SGLang's
``/start_profile`` gets exactly the steps that sgtop traced (``start_step``, ``num_steps``). Attention's time is a
staircase of the context, and a router's kernels depend on the tokens, so nothing less is the same load. Wanted: as many
launches a step, and the total time a step within 2 % (each tool's median over the rounds). ``rounds``: µs a step, by
sgtop and by torch; ``spread``: by how much each tool's own rounds differ. Exit status 1 where that is not so.

``early``: the share of a kernel's launches that began before every kernel before it had ended, a round, by sgtop and by
torch; ``own_us``: the mean of a launch from then on (``own_ratio``: sgtop ÷ torch, medians). A kernel of programmatic
dependent launch waits inside itself for the one before, so it is longer the further the host is ahead, and a profiler
that slows the launches makes it shorter.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import Witness, header, result, say
from host import PORT, client, decoding, witness
from kernels_server import Talk, live, switch, tracing
from sgtop_agent import wire
from sgtop_core.kernels.names import NameTable
from sgtop_core.model.arrays import F64, I64

from tools.sglang_cpu.client import HttpError

LIMIT = 0.02
AHEAD_S = 1.5
"""A generation has run for so long when a rank is live or a profile is asked for, and some more."""
COUNTED_S = 4.5
"""What waits for its forward is counted by then."""


@dataclass(frozen=True)
class Seen:
    """Decode kernels of some steps: name → launches a step, and µs a step."""

    launches: Mapping[str, float]
    us: Mapping[str, float]
    early: Mapping[str, float]
    """Share of the launches that began before every kernel before them had ended."""
    own_us: Mapping[str, float]
    """Mean of a launch, µs, without the time in which a kernel before it still ran."""


def early(start: F64, end: F64, name: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """``Seen.early`` and ``Seen.own_us`` of kernels in any order, times in µs."""
    order = np.argsort(start, kind="stable")
    start, end, names = start[order], end[order], np.array(name)[order]
    before = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    own = np.maximum(end - np.maximum(start, before), 0.0)
    places = {each: np.flatnonzero(names == each) for each in set(name)}
    shares = {each: float((start < before)[mine].mean()) for each, mine in places.items()}
    return shares, {each: float(own[mine].mean()) for each, mine in places.items()}


@dataclass(frozen=True)
class Load:
    """``bs`` requests, each ``prompt`` tokens in and ``tokens`` out; they are aborted before that."""

    bs: int
    prompt: int
    tokens: int


class Generation:
    """The endless decode that has just begun: counts its steps."""

    def __init__(self, seen: Witness) -> None:
        self._seen = seen
        last = seen.count()
        far = max(0, last - Witness.kept + 1000)
        mode = seen.steps(far, last).mode
        other = np.flatnonzero(mode != mode[-1])
        self._begun = far + int(other[-1]) + 1 if len(other) else far
        """Row of its first step in which the whole batch decoded."""

    @property
    def length(self) -> int:
        """Steps so far."""
        return self._seen.count() - self._begun

    def wait(self, length: int) -> None:
        """Until so many steps were made."""
        end = time.monotonic() + 60
        while self.length < length:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.length} steps of {length} within 60 s")
            time.sleep(0.001)

    def ct(self, length: int) -> int:
        """``forward_ct`` of that step."""
        return int(self._seen.steps(self._begun, self._begun + 1).ct[0]) + length

    def between(self, begin: int, end: int) -> tuple[int, int]:
        """First and last step whose launch began between two moments, CLOCK_MONOTONIC ns."""
        t0 = self._seen.steps(self._begun).t0
        inside = np.flatnonzero((t0 >= begin) & (t0 <= end))
        return int(inside[0]), int(inside[-1])


class Tap:
    """What the agent says of the window and its forwards, and the kernels that sgtop counts."""

    def __init__(self) -> None:
        self.window: list[int] = []
        """Epoch, on, off, ns to enable, ns to disable; and when that was known, CLOCK_MONOTONIC ns."""
        self._forwards: list[tuple[int, ...]] = []
        self._kernels: list[I64] = []
        """Blocks of (start, end, address)."""
        self._names = NameTable()

    def take(self, _label: str, frame: wire.Frame, now: int) -> None:
        """A frame of the session."""
        if frame["k"] == "kernels" and frame.get("windows") and not self.window:
            self.window = [*map(int, frame["windows"][-1]), now]
        elif frame["k"] == "ev" and frame["e"] == "forward":
            names = ("t0", "gpu0", "gpu1", "t1", "graph")
            columns = [np.frombuffer(frame["c"][name], "<i8").tolist() for name in names]
            for t0, gpu0, gpu1, t1, graph in zip(*columns, strict=True):
                self._forwards.append((t0, *((gpu0, gpu1) if gpu0 > 0 else (t0, t1)), graph, now))
        elif frame["k"] == "raw":
            self._kernels.append(np.array([np.frombuffer(frame["c"][name], "<i8") for name in ("t0", "t1", "name")]))
        elif isinstance(result := frame.get("result"), dict) and "names" in result:
            self._names.answer(result["names"])

    def early(self) -> tuple[dict[str, float], dict[str, float]]:
        """``Seen.early`` and ``Seen.own_us``."""
        start, end, address = np.concatenate(self._kernels, axis=1)
        kernel = address >= 0  # torch's kernels are without copies too
        names = [self._names.get(a).full for a in address[kernel].tolist()]
        return early(start[kernel] / 1e3, end[kernel] / 1e3, names)

    def report(self) -> None:
        """The window, and the forwards at its end or with another number of kernels than most."""
        _, on, off, enable, disable, known = self.window
        say("window", f"{enable / 1e6:.2f} ms to enable, {disable / 1e6:.2f} to disable; "
            f"its end was known after {(known - off) / 1e6:.0f} ms")  # fmt: skip
        starts = np.sort(np.concatenate(self._kernels, axis=1)[0])
        rows = [(row, int(np.diff(np.searchsorted(starts, row[1:3]))[0])) for row in self._forwards]
        usual = collections.Counter(n for _, n in rows if n).most_common(1)[0][0]
        for (t0, gpu0, gpu1, graph, at), n in rows:
            if on < gpu1 and t0 < off + 5_000_000 and (n != usual or t0 > off - 20_000_000):
                times = "/".join(f"{(t - off) / 1e6:.2f}" for t in (t0, gpu0, gpu1, at))
                say("forward", f"{n} kernels of {usual}; launch/begin/end/known {times} ms after off, graph {graph}")


def empty() -> None:
    """Nothing runs and nothing is cached: the next generation gets the same places in the KV pool as the last."""
    for _ in range(100):
        try:
            client().call("POST", "/flush_cache")
            return
        except HttpError:  # something still runs
            time.sleep(0.1)
    raise TimeoutError("the server is not idle within 10 s")


def traced(seen: Witness, load: Load, at: int | None, seconds: float) -> tuple[Seen, int, int]:
    """What sgtop sees from step ``at`` of the generation on (None: when it is ready), and the first and last step."""
    tap = Tap()
    empty()
    with decoding(load.bs, load.tokens, prompt=load.prompt):
        generation = Generation(seen)
        session = live(PORT)
        session.taps.append(tap.take)
        try:
            time.sleep(AHEAD_S)
            if at is not None:
                generation.wait(at)
            switch(session, "on", "tracing")
            time.sleep(seconds)
            switch(session, "off", "off")
            time.sleep(COUNTED_S)
            view = tracing(session)
        finally:
            session.stop()
        assert view is not None
        first, last = generation.between(*tap.window[1:3])
    tap.report()
    table = next(m for m in view.modes if m.mode == "DECODE")
    say("sgtop", f"steps {first} to {last}, {table.forwards} forwards, {table.launches_per_step} launches a step; "
        f"{view.lost_buffers} buffers lost, {view.untimed} records without times")  # fmt: skip
    launches = {k.full_name: k.per_step or 0 for k in table.rows}
    us = {k.full_name: (k.per_step or 0) * k.avg_us for k in table.rows}
    return Seen(launches, us, *tap.early()), first, last


def profiled(seen: Witness, load: Load, first: int, last: int) -> Seen:
    """What torch's profiler sees of those steps."""
    empty()
    with decoding(load.bs, load.tokens, prompt=load.prompt):
        generation = Generation(seen)
        if generation.length > first - 5:
            raise RuntimeError(f"at step {generation.length} already: too late for a profile from {first} on")
        kernels, steps = Talk(PORT).profile(last - first + 1, generation.ct(first))
    say("torch", f"steps {first} to {last}, {steps} steps in the trace")
    n = steps or last - first + 1
    names = [name for name, each in kernels.items() for _ in each]
    ts, us = np.array([both for each in kernels.values() for both in each]).T
    return Seen(
        {k: len(v) / n for k, v in kernels.items()},
        {k: sum(length for _, length in v) / n for k, v in kernels.items()},
        *early(ts, ts + us, names),
    )


def _middle(rounds: list[Seen], name: str) -> float:
    return statistics.median(each.us.get(name, 0.0) for each in rounds)


def _own(rounds: list[Seen], name: str) -> float:
    return statistics.median(each.own_us.get(name, 0.0) for each in rounds)


def _spread(rounds: list[Seen], name: str) -> float:
    values = [each.us.get(name, 0.0) for each in rounds]
    return round((max(values) - min(values)) / max(statistics.mean(values), 1e-9), 4)


def compare(ours: list[Seen], theirs: list[Seen]) -> list[dict[str, Any]]:
    """The ten largest kernels of ``theirs``, each with what both saw."""
    names: set[str] = set().union(*(each.us for each in theirs))
    rows = []
    for name in sorted(names, key=lambda k: -_middle(theirs, k))[:10]:
        launches = [[each.launches.get(name, 0.0) for each in rounds] for rounds in (ours, theirs)]
        counts = collections.Counter(round(n) for each in launches for n in each)
        ratio = _middle(ours, name) / _middle(theirs, name)
        rows.append({
            "name": name[:80],
            "per_step": [round(n, 2) for n in launches[0]],
            "torch_per_step": [round(n, 2) for n in launches[1]],
            "us_per_step": round(_middle(ours, name), 3),
            "torch_us_per_step": round(_middle(theirs, name), 3),
            "avg_us": round(_middle(ours, name) / max(statistics.mean(launches[0]), 1e-9), 3),
            "time_ratio": round(ratio, 4),
            "rounds": [[round(each.us.get(name, 0.0), 2) for each in rounds] for rounds in (ours, theirs)],
            "spread": [_spread(ours, name), _spread(theirs, name)],
            "early": [[round(each.early.get(name, 0.0), 3) for each in rounds] for rounds in (ours, theirs)],
            "own_us": [[round(each.own_us.get(name, 0.0), 3) for each in rounds] for rounds in (ours, theirs)],
            "own_ratio": round(_own(ours, name) / max(_own(theirs, name), 1e-9), 4),
            "ok": len(counts) == 1 and abs(ratio - 1) <= LIMIT,
        })  # fmt: skip
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="of tracing, a round")
    parser.add_argument("--prompt", type=int, help="tokens; 8000 for one request, 2000 for more")
    parser.add_argument("--tokens", type=int, default=20_000, help="of which a generation needs some thousand")
    given = parser.parse_args()
    header()
    load = Load(given.bs, given.prompt or (8000 if given.bs == 1 else 2000), given.tokens)
    seen = witness()
    ours: list[Seen] = []
    theirs: list[Seen] = []
    at: int | None = None
    for _ in range(given.rounds):
        mine, first, last = traced(seen, load, at, given.seconds)
        at = at or first
        ours.append(mine)
        theirs.append(profiled(seen, load, first, last))
    rows = compare(ours, theirs)
    for row in rows:
        say("kernel", row)
    bad = [row["name"] for row in rows if not row["ok"]]
    result(bench="equal", bs=given.bs, rounds=given.rounds, kernels=len(rows), bad=bad,
           ratios=[row["time_ratio"] for row in rows], own_ratios=[row["own_ratio"] for row in rows])  # fmt: skip
    return 1 if bad or len(rows) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
