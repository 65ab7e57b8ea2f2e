"""What the checks share: the server that run_all.py left running (it also sets their import path), endless decoding."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from common import Witness, effect, result, say
from sgtop_probes.discovery import RankProcess
from sgtop_probes.resolve import resolve

from tests.server.listener import Listener
from tools.sglang_cpu.client import Client
from tools.sglang_gpu.server import STATE

PORT = int(os.environ.get("SGTOP_BENCH_PORT", "30000"))
"""run_all.py says on which port the server of this check listens."""
FOLDER = STATE / "witness"

__all__ = ["FOLDER", "PORT", "Listener", "Rates", "client", "decoding", "rank", "witness"]


def client() -> Client:
    """Of the server."""
    return Client(f"http://127.0.0.1:{PORT}", timeout_s=600)


def rank() -> RankProcess:
    """Its only rank."""
    return resolve(f":{PORT}").ranks[0]


def witness() -> Witness:
    """The witness in its scheduler; runs a request first, so that there is one."""
    client().generate([5] * 40, 8)
    pid = rank().pid
    assert pid is not None
    return Witness(FOLDER, pid)


@contextmanager
def decoding(bs: int, tokens: int = 30000, again: bool = False, prompt: int = 64) -> Iterator[None]:
    """``bs`` requests of ``prompt`` tokens decode until the end; then they are aborted.

    ``again``: those that finish begin anew.

    Raises:
        TimeoutError: they do not all decode within 60 s.
    """
    talk = client()

    def one(seed: int) -> None:
        chosen = random.Random(seed)
        try:
            talk.generate([chosen.randrange(6, 250) for _ in range(prompt)], tokens)
            while again and not over.is_set():
                talk.generate([chosen.randrange(6, 250) for _ in range(prompt)], tokens)
        except RuntimeError:
            return  # an abort may be answered with an error

    seen = witness()
    over = threading.Event()
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(bs)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 60
        while seen.count() == 0 or seen.steps(seen.count() - 1).bs[0] != bs:
            if time.monotonic() > end:
                raise TimeoutError(f"not {bs} requests in the batch within 60 s")
            time.sleep(0.1)
        time.sleep(1)
        yield
    finally:
        over.set()
        talk.abort()
        for thread in threads:
            thread.join(30)


class Rates:
    """Decode rates by the witness, each with the length of the generation at which it was taken."""

    def __init__(self, seen: Witness, bs: int) -> None:
        self.rows: list[tuple[bool, float, float]] = []
        """For ``common.effect``."""
        self._seen, self._bs = seen, bs

    def take(self, on: bool, seconds: float) -> float:
        """Steps a second of the next ``seconds``.

        Raises:
            SystemExit: the batch was not of the size that was asked for.
        """
        first = self._seen.count()
        time.sleep(seconds)
        last = self._seen.count()
        steps = self._seen.steps(first, last)
        decode = steps.mode == steps.mode[-1]
        if not (steps.bs[decode] == self._bs).all():
            raise SystemExit(f"the batch was not {self._bs} all the time: {sorted(set(steps.bs.tolist()))}")
        rate = float((steps.t0.size - 1) / (steps.t0[-1] - steps.t0[0]) * 1e9)
        far = max(0, last - Witness.kept + 1000)
        other = np.flatnonzero(self._seen.steps(far, last).mode != steps.mode[-1])
        begun = far + int(other[-1]) if len(other) else far
        self.rows.append((on, (first + last) / 2 - begun, rate))
        return rate

    def report(self, **about: object) -> None:
        """Print on ÷ off and every measurement."""
        middle, low, high = effect(self.rows)
        off, on = (float(np.median([r for side, _, r in self.rows if side == s])) for s in (False, True))
        say("steps/s, off and on", f"{off:.2f} and {on:.2f}")
        say("throughput on ÷ off", f"{middle:.4f}, 95 % interval {low:.4f} to {high:.4f} ({len(self.rows) // 2} pairs)")
        say("on, length, steps/s", " ".join(f"{on:d}/{x:.0f}/{r:.1f}" for on, x, r in self.rows))
        result(**about, bs=self._bs, ratio=middle, low=low, high=high, pairs=len(self.rows) // 2)
