"""Switches on a real GPU server: decode graphs off and on during load, every rank at one step, answers unchanged, `ab`.

    python bench/gpu/switches.py --bundle .bundle/site.txz [--tp 2] [--budget 290] [--model qwen3-8b] [--stop]

Starts the server when none runs on the port (that is not in the budget). One JSON line a check; a check that fails is
reported and the next one runs; the last line sums up. The exit status is 1 when a check failed or did not fit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent.parent
PARTS = ("agent", "probes", "core", "tui")
sys.path[:0] = [str(REPO), *(str(REPO / part) for part in PARTS)]

from sgtop_core.session import Session, SessionOptions  # noqa: E402  (found through the path above)
from sgtop_core.switches.ab_run import Logs  # noqa: E402

from tools.sglang_cpu.client import Client, HttpError  # noqa: E402
from tools.sglang_gpu import server  # noqa: E402

DECODE = "cuda-graph-decode"
PREFILL = "cuda-graph-prefill"
RADIX = "radix-cache"
ENDLESS = [20000]
"""Tokens of the requests that make the load."""


class Failed(Exception):
    """A check found something else than it should."""


def ids(n: int, seed: int) -> list[int]:
    """A prompt of ``n`` tokens, the same for the same seed."""
    chosen = random.Random(seed)
    return [chosen.randrange(6, 250) for _ in range(n)]


def answers(client: Client, count: int = 4, tokens: int = 48) -> list[tuple[int, ...]]:
    """Answers at temperature 0, one request after the other, to prompts that are never cached."""
    for attempt in range(20):
        try:
            client.flush_cache()
            break
        except HttpError:  # what was aborted may still be on its way out
            if attempt == 19:
                raise
            time.sleep(0.25)
    return [client.generate(ids(100, 1000 + i), tokens).output_ids for i in range(count)]


@contextlib.contextmanager
def decoding(client: Client, bs: int = 1) -> Iterator[None]:
    """``bs`` requests decode until the end."""
    stop = threading.Event()

    def one(seed: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            with contextlib.suppress(HttpError):  # an abort may be answered with an error
                client.generate(ids(64, seed * 1000 + n), ENDLESS[0])

    threads = [threading.Thread(target=one, args=(i + 1,), daemon=True) for i in range(bs)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    try:
        yield
    finally:
        stop.set()
        for _ in range(3):
            client.abort()
            for thread in threads:
                thread.join(5)


class Bench:
    """One attached session and what it has seen."""

    def __init__(self, port: int) -> None:
        self.client = Client(f"http://127.0.0.1:{port}", timeout_s=120)
        self.port = port
        self.session = Session(f":{port}", SessionOptions())
        self.session.start()
        end = time.monotonic() + 30
        while not (states := [r.state for r in self.session.snapshot().ranks]) or set(states) != {"live"}:
            if time.monotonic() > end:
                raise Failed(f"not attached: {self.session.snapshot().attach}")
            time.sleep(0.05)
        self.logs = Logs(self.session)

    def ask(self, op: str, **args: Any) -> Any:
        """A command's result."""
        reply = self.session.command(None, op, args)
        if not reply.get("ok"):
            raise Failed(f"{op} {args}: {reply.get('error')}")
        return reply["result"]

    def flip(self, switch: str, on: bool, for_s: float = 60.0) -> int:
        """Flip and wait until it is in force on every rank; N, where N + 1 is the first step of it."""
        if on:
            self.ask("toggle.back", switch=switch)
        else:
            self.ask("toggle", switch=switch, on=False, for_s=for_s)
        if not self.session.switches.wait(switch, on, 15):
            raise Failed(f"{switch} is not {'on' if on else 'off'} after 15 s: {self.session.switches.list()}")
        (state,) = self.session.switches.list().values()
        return int(state["word"][2])

    def changes(self) -> dict[str, list[list[int]]]:
        """Rank → its own log of changes: [forward_ct, state]."""
        out = {}
        for label in self.session.hellos():
            reply, _ = self.session.ask(label, "switch.list", {})
            out[label] = [row[:2] for row in reply["result"]["log"]]
        return out


def check_list(b: Bench) -> dict[str, Any]:
    """What can be switched, and why not."""
    (state,) = b.ask("toggle.list").values()
    plan = b.ask("toggle.plan", switch=DECODE, on=False)
    return {
        "switches": {s["name"]: s["reason"] or "available" for s in state["switches"]},
        "plan": [p["text"] for p in plan.values()],
    }


def check_decode_flips(b: Bench) -> dict[str, Any]:
    """Six flips at bs 1: the graph flag of every step on every rank is what the flip says, from step N + 1 on."""
    seen = []
    with decoding(b.client):
        rates: dict[str, list[float]] = {"on": [], "off": []}
        for i in range(6):
            on = bool(i % 2)
            n = b.flip(DECODE, on)
            time.sleep(1.5)
            last = {label: log.last() or 0 for label, log in b.logs.of.items()}
            flags = {label: log.graph_flags(n - 20, last[label]) for label, log in b.logs.of.items()}
            for label, steps in flags.items():
                wrong = [ct for ct, graph in steps.items() if graph != int((ct > n) == on)]
                if wrong or not any(ct > n for ct in steps) or not any(ct <= n for ct in steps):
                    raise Failed(f"flip {i} at step {n}: {label} differs at {wrong[:5]} of {len(steps)} steps")
            figures = b.logs.stretch(dict.fromkeys(b.logs.leaders, n + 5), 0, 1 << 62)
            rates["on" if on else "off"].append(round(1e3 / (figures.step_ms or 1e9), 1))
            seen.append(n)
        changes = b.changes()
        if len({json.dumps(rows[-6:]) for rows in changes.values()}) != 1:
            raise Failed(f"ranks changed at different steps: {changes}")
    return {"steps": seen, "ranks": len(changes), "steps_per_s": rates, "log": next(iter(changes.values()))[-6:]}


def check_answers(b: Bench) -> dict[str, Any]:
    """Serial answers with graphs on, off, on: the same, as far as the server repeats itself at all."""
    first = answers(b.client)
    again = answers(b.client)
    with decoding(b.client):  # a flip takes effect after four steps: something has to make them
        b.flip(DECODE, False)
    eager = answers(b.client)
    with decoding(b.client):
        b.flip(DECODE, True)
    back = answers(b.client)
    same = [sum(x == y for x, y in zip(first, other, strict=True)) for other in (again, eager, back)]
    if first == again and (eager != first or back != first):
        raise Failed(f"answers changed: of {len(first)}, repeated {same[0]}, eager {same[1]}, back {same[2]}")
    return {"answers": len(first), "same_repeated": same[0], "same_eager": same[1], "same_back": same[2]}


def check_radix(b: Bench) -> dict[str, Any]:
    """Cached tokens of a repeated prompt: warm, none while misses are forced, warm again."""
    prompt = ids(300, 5)
    first = b.client.generate(prompt, 16)
    warm = b.client.generate(prompt, 16)
    with decoding(b.client):
        n = b.flip(RADIX, False)
        missed = b.client.generate(prompt, 16)
        back = b.flip(RADIX, True)
        again = b.client.generate(prompt, 16)
    cached = [warm.cached_tokens, missed.cached_tokens, again.cached_tokens]
    if not (cached[0] > 0 and cached[1] == 0 and cached[2] > 0):
        raise Failed(f"cached tokens warm, off, on: {cached}")
    return {"cached_tokens": cached, "steps": [n, back], "same_answer": first.output_ids == warm.output_ids}


def check_client_killed(b: Bench) -> dict[str, Any]:
    """`sgtop toggle` is killed with the graphs off: they are back within a second on every rank, at one step."""
    with decoding(b.client):
        command = [sys.executable, "-m", "sgtop_tui", "toggle", DECODE, "off", "--yes"]
        command += ["--attach", f":{b.port}", "--json"]
        env = {**os.environ, "PYTHONPATH": ":".join(str(REPO / part) for part in PARTS)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=REPO) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if json.loads(line)["event"] == "off":
                    break
            time.sleep(0.5)
            child.kill()
            killed = time.monotonic()
            back = b.session.switches.wait(DECODE, True, 5)
            took = time.monotonic() - killed
        changes = b.changes()
        if not back or len({json.dumps(rows[-2:]) for rows in changes.values()}) != 1:
            raise Failed(f"not back at one step: {changes}")
    if took > 1.0:
        raise Failed(f"back only after {took:.2f} s")
    return {"back_s": round(took, 3), "log": next(iter(changes.values()))[-2:]}


def _ab(b: Bench, switch: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "sgtop_tui", "ab", "--switch", switch, "--attach", f":{b.port}", "--json"]
    command += ["--rounds", "5", "--each", "2s"]
    env = {**os.environ, "PYTHONPATH": ":".join(str(REPO / part) for part in PARTS)}
    with decoding(b.client):
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=REPO, timeout=120)
    if done.returncode:
        raise Failed(f"exit status {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_ab(b: Bench) -> dict[str, Any]:
    """`sgtop ab` finds the large effect of decode graphs at bs 1."""
    found = _ab(b, DECODE)
    step = next(m for m in found["measures"] if m["measure"] == "step_ms")
    if step["verdict"] != "difference" or step["ratio"] < 1.5:
        raise Failed(f"no large effect found: {found['measures']}")
    return found


def check_ab_null(b: Bench) -> dict[str, Any]:
    """`sgtop ab` finds nothing where nothing is flipped."""
    found = _ab(b, "null")
    if found["difference"]:
        raise Failed(f"a difference where there is none: {found['measures']}")
    return found


def check_prefill(b: Bench) -> dict[str, Any]:
    """Prefill graphs, where the server captured them: off and on, with answers unchanged."""
    (state,) = b.ask("toggle.list").values()
    mine = next(s for s in state["switches"] if s["name"] == PREFILL)
    if not mine["available"]:
        return {"skipped": mine["reason"]}
    before = answers(b.client)
    with decoding(b.client):
        n = b.flip(PREFILL, False)
        during = b.client.generate(ids(100, 1000), 48).output_ids
        back = b.flip(PREFILL, True)
    after = answers(b.client)
    if after != before:
        raise Failed("answers changed after prefill graphs came back")
    return {"steps": [n, back], "same_answer_beside_load": during == before[0]}


CHECKS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "list": check_list,
    "decode_flips": check_decode_flips,
    "ab": check_ab,
    "ab_null": check_ab_null,
    "answers": check_answers,
    "radix": check_radix,
    "client_killed": check_client_killed,
    "prefill": check_prefill,
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--model", default="qwen3-8b")
    parser.add_argument("--budget", type=float, default=290, help="seconds for the checks")
    parser.add_argument("--only", nargs="+", choices=sorted(CHECKS), default=list(CHECKS))
    parser.add_argument("--stop", action="store_true", help="end the server afterwards")
    parser.add_argument("--endless", type=int, default=ENDLESS[0], help="tokens of the requests that make the load")
    given = parser.parse_args()
    ENDLESS[0] = given.endless
    server.STATE.mkdir(parents=True, exist_ok=True)
    try:
        if given.bundle is not None and server.running(given.port) is None:
            begin = time.monotonic()
            flags = ["--tp-size", str(given.tp)] if given.tp > 1 else []
            site = server.unpack(given.bundle)
            server.start(site, given.model, given.port, flags=flags, timeout_s=420)
            _line("start", seconds=round(time.monotonic() - begin, 1), model=given.model, tp=given.tp)
        end = time.monotonic() + given.budget
        bench = Bench(given.port)
    except (Failed, server.GpuServerError) as e:
        _line("start", failed=str(e)[-3000:])
        return 1
    failed = []
    try:
        for name in given.only:
            if end - time.monotonic() < 25:
                failed.append(name)
                _line(name, failed="no time left; run it again with --only")
                continue
            failed += [name] if not _run(bench, name) else []
    finally:
        bench.session.stop()
        if given.stop:
            server.stop(given.port)
    _line("all", tp=given.tp, passed=len(given.only) - len(failed), failed_checks=failed)
    return int(bool(failed))


def _run(bench: Bench, name: str) -> bool:
    begin = time.monotonic()
    try:
        found: dict[str, Any] = CHECKS[name](bench)
    except Exception as e:  # the next check may still say something
        found = {"failed": f"{type(e).__name__}: {e}"[:1500]}
        bench.session.command(None, "toggle.back", {})
    _line(name, seconds=round(time.monotonic() - begin, 1), **found)
    return "failed" not in found


def _line(check: str, **more: Any) -> None:
    print(json.dumps({"check": check, **more}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
