"""What the checks share: the server that run_all.py left running (it also sets their import path), endless decoding."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from common import Client, Witness
from sgtop_probes.discovery import RankProcess
from sgtop_probes.resolve import resolve

from tests.server.listener import Listener
from tools.sglang_gpu.server import STATE

PORT = int(os.environ.get("SGTOP_BENCH_PORT", "30000"))
"""run_all.py says on which port the server of this check listens."""
FOLDER = STATE / "witness"

__all__ = ["FOLDER", "PORT", "Listener", "client", "decoding", "rank", "witness"]


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
