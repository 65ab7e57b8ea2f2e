"""Requests whose effect on the scheduler is known, and what SGLang itself counted of them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools.sglang_cpu.client import Answer, Client, HttpError

VOCABULARY = range(6, 256)
"""Token ids of the tiny model that are no special tokens."""


def ids(n: int, seed: int) -> list[int]:
    """A prompt of exactly ``n`` tokens, the same for the same seed."""
    chosen = random.Random(seed)
    return [chosen.choice(VOCABULARY) for _ in range(n)]


def serial(client: Client, prompts: Iterable[list[int]], tokens: int = 24) -> list[tuple[int, ...]]:
    """Answers at temperature 0, one request after the other: the same on every run of the same server."""
    return [client.generate(prompt, tokens).output_ids for prompt in prompts]


def at_once(client: Client, prompts: Sequence[list[int]], tokens: int = 24, *, ignore_eos: bool = True) -> list[Answer]:
    """Answers to prompts sent together.

    Raises:
        HttpError: one of them failed.
    """
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: client.generate(prompt, tokens, ignore_eos=ignore_eos), prompts))


@dataclass(frozen=True)
class Counters:
    """SGLang's own counters of tokens, rank 0."""

    prefill_compute: int
    prefill_cache: int
    decode: int

    def __sub__(self, other: Counters) -> Counters:
        """What was counted between two readings."""
        return Counters(
            self.prefill_compute - other.prefill_compute,
            self.prefill_cache - other.prefill_cache,
            self.decode - other.decode,
        )


def counters(client: Client) -> Counters:
    """Read ``sglang:realtime_tokens_total`` by its mode."""
    name = "sglang:realtime_tokens_total"
    read = [s for s in client.metrics() if s.name == name and s.labels.get("tp_rank", "0") == "0"]
    by_mode = {s.labels["mode"]: int(s.value) for s in read}
    return Counters(*(by_mode.get(mode, 0) for mode in ("prefill_compute", "prefill_cache", "decode")))


def everything(client: Client) -> None:
    """Chunked prefill, mixed chunks (where the server has them on), radix hits, aborts and a crowded KV pool."""
    serial(client, [ids(30, 1), ids(30, 1), ids(900, 2)])
    system = ids(300, 3)
    at_once(client, [system + ids(10, 100 + i) for i in range(12)], tokens=16)
    # Prompts of several chunks arrive while others decode.
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(client.generate, ids(20, 200 + i), 150) for i in range(4)]
        waiting += [pool.submit(client.generate, ids(700, 300 + i), 12) for i in range(4)]
        for answer in waiting:
            answer.result()
    abort_some(client, 6)
    # Together they want more KV slots than a small pool has: some are retracted and come back. SGLang admits requests
    # that ignore the end token by what they will need at most, so these do not ignore it.
    at_once(client, [ids(60, 500 + i) for i in range(16)], tokens=200, ignore_eos=False)


def abort_some(client: Client, n: int) -> None:
    """``n`` generations of a thousand tokens, aborted a moment later: some run by then, some may still wait."""
    with ThreadPoolExecutor(n) as pool:
        running = [pool.submit(client.generate, ids(30, 600 + i), 1000, rid=f"sgtop-abort-{i}") for i in range(n)]
        time.sleep(0.3)
        for i in range(n):
            client.abort(f"sgtop-abort-{i}")
        for each in running:
            try:
                each.result(60)
            except HttpError:  # how an abort is answered depends on the version, and on whether it still waited
                continue


class Background:
    """Endless small requests beside a test; every failure is kept."""

    def __init__(self, client: Client, *, workers: int = 3, tokens: int = 40) -> None:
        """Start ``workers`` threads."""
        self.client = client
        self.answered = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i, tokens)) for i in range(workers)]

    def _run(self, worker: int, tokens: int) -> None:
        n = 0
        while not self._stop.is_set():
            n += 1
            try:
                answer = self.client.generate(ids(24, worker * 100_000 + n), tokens, temperature=0.8)
                if answer.completion_tokens != tokens:
                    self.failures.append(f"{answer}")
                self.answered += 1
            except HttpError as e:
                self.failures.append(str(e))
                self._stop.wait(0.2)

    def __enter__(self) -> Background:
        """Running."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop and wait for the last answers."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
