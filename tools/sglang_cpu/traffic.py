"""Varied load for a server: what a busy day looks like, in a minute. Standard library only."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tools.sglang_cpu.client import Client, HttpError

WORDS = ("prefill", "decode", "cache", "token", "batch", "request", "server", "client", "thread", "process", "kernel")


def text(words: int, seed: int) -> str:
    """Words that are the same for the same seed; about two tokens of the tiny model each."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


class Traffic:
    """Runs phases one after the other until ``stop`` is set; counts what was answered and what failed."""

    def __init__(self, client: Client, stop: threading.Event, *, seed: int = 1) -> None:
        """``seed`` makes the order of sizes repeatable; prompts differ from run to run of a phase."""
        self._client = client
        self._stop = stop
        self._random = random.Random(seed)
        self._fresh = seed * 1_000_000
        self.answered = 0
        self.failed = 0

    def phases(self) -> list[tuple[str, Callable[[], None]]]:
        """The phases, in words, in their order."""
        return [
            ("a conversation: a few steady generations", self.steady),
            ("long prompts: prefill in chunks beside decoding", self.long_prompts),
            ("a shared prefix: the radix cache answers most of the prompt", self.shared_prefix),
            ("a burst: 24 requests at once", self.burst),
            ("long generations", self.long_generations),
            ("quiet", self.quiet),
        ]

    def run(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Go round the phases until stopped."""
        while not self._stop.is_set():
            for name, phase in self.phases():
                if self._stop.is_set():
                    return
                say(name)
                phase()

    def steady(self) -> None:
        """Four requests at a time for about eight seconds."""
        self._many([(self._new(20), 96) for _ in range(24)], at_once=4)

    def long_prompts(self) -> None:
        """Prompts of several chunks while short ones decode."""
        sizes = [(self._new(self._random.choice((400, 700, 1100))), 24) for _ in range(8)]
        self._many([x for long in sizes for x in (long, (self._new(12), 120))], at_once=6)

    def shared_prefix(self) -> None:
        """One long system prompt, many different questions."""
        system = self._new(600)
        self._many([(f"{system} {self._new(8)}", 32) for _ in range(24)], at_once=4)

    def burst(self) -> None:
        """Everything at once."""
        self._many([(self._new(self._random.randint(10, 120)), 64) for _ in range(24)], at_once=24)

    def long_generations(self) -> None:
        """Few requests, many tokens."""
        self._many([(self._new(16), 700) for _ in range(4)], at_once=4)

    def quiet(self) -> None:
        """Now and then a small one."""
        for _ in range(3):
            if self._stop.wait(1.5):
                return
            self._one(self._new(10), 8)

    def _new(self, words: int) -> str:
        self._fresh += 1
        return text(words, self._fresh)

    def _many(self, requests: list[tuple[str, int]], at_once: int) -> None:
        with ThreadPoolExecutor(at_once) as pool:
            for prompt, tokens in requests:
                pool.submit(self._one, prompt, tokens)

    def _one(self, prompt: str, tokens: int) -> None:
        if self._stop.is_set():
            return
        try:
            self._client.generate(prompt, tokens, temperature=0.8)
            self.answered += 1
        except HttpError:
            self.failed += 1
            self._stop.wait(0.5)  # a server that is gone must not be asked in a tight loop


def main() -> None:
    """``python -m tools.sglang_cpu.traffic URL``: until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("url")
    traffic = Traffic(Client(parser.parse_args().url), threading.Event())
    start = time.monotonic()
    traffic.run(lambda phase: print(f"{time.monotonic() - start:7.1f} s  {phase}", flush=True))


if __name__ == "__main__":
    main()
