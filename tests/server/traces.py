"""What a scheduler process holds: seen from outside through /proc, and from inside by the witness."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True)
class Traces:
    """What an agent may leave behind. ``anonymous_kb`` and ``maps`` move a little by themselves: torch allocates."""

    threads: tuple[str, ...]
    """Names of OS threads."""
    fds: tuple[str, ...]
    """What the descriptors are, without numbers."""
    named_maps: tuple[str, ...]
    """Names of mapped files; deleted ones and memfds included."""
    anonymous_kb: int
    """Size of anonymous mappings (stacks and the heap not)."""
    attributes: tuple[str, ...] = ()
    """Attributes of the scheduler, its worker, its runner, their parts and their classes."""
    modules: tuple[str, ...] = ()
    finders: tuple[str, ...] = ()
    path_hooks: int = 0
    gc_callbacks: int = 0
    python_threads: tuple[str, ...] = ()
    objects: Counter[str] = field(default_factory=Counter)
    """Live objects of sgtop's types, and sgtop's functions, by name."""

    def grown_since(self, before: Traces, *, anonymous_slack_kb: int = 4096) -> list[str]:
        """In words, what is there now and was not ``before``; empty when nothing is.

        A page that every attach left behind would be 64 KB a cycle: the slack is under a third of 200 cycles of that.
        """
        out = []
        for f in fields(self):
            now, then = getattr(self, f.name), getattr(before, f.name)
            if isinstance(now, (tuple, Counter)):
                if more := Counter(now) - Counter(then):
                    out.append(f"{f.name}: {', '.join(f'{n} {name}' for name, n in more.most_common(40))}")
            elif now > then + (anonymous_slack_kb if f.name == "anonymous_kb" else 0):
                out.append(f"{f.name}: {then} → {now}")
        return out


def from_outside(pid: int) -> Traces:
    """What /proc shows."""
    threads = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            threads.append(Path(f"/proc/{pid}/task/{task}/comm").read_text().strip())
        except OSError:
            continue
    fds = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            fds.append(re.sub(r"\[?\d{2,}\]?", "", os.readlink(f"/proc/{pid}/fd/{fd}")))
        except OSError:
            continue
    named, anonymous = set(), 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        first, *rest = line.split(maxsplit=5)
        low, high = (int(x, 16) for x in first.split("-"))
        name = rest[4] if len(rest) > 4 else ""
        if name and not name.startswith("["):
            named.add(name)
        elif not name:
            anonymous += (high - low) // 1024
    return Traces(tuple(sorted(threads)), tuple(sorted(fds)), tuple(sorted(named)), anonymous)


def from_inside(pid: int, folder: Path, timeout_s: float = 20.0) -> Traces:
    """The same, with what the witness (``SGTOP_WITNESS=folder``) sees from within.

    Raises:
        TimeoutError: it does not answer.
    """
    answer = folder / f"{pid}.look"
    answer.unlink(missing_ok=True)
    with open(folder / f"{pid}.ask", "w") as ask:
        ask.write("?\n")
    end = time.monotonic() + timeout_s
    while not answer.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"the witness in {pid} does not answer")
        time.sleep(0.01)
    inside = json.loads(answer.read_text())
    outside = from_outside(pid)
    return Traces(
        outside.threads,
        outside.fds,
        outside.named_maps,
        outside.anonymous_kb,
        attributes=tuple(inside["attributes"]),
        modules=tuple(inside["modules"]),
        finders=tuple(inside["finders"]),
        path_hooks=inside["path_hooks"],
        gc_callbacks=inside["gc_callbacks"],
        python_threads=tuple(inside["threads"]),
        objects=Counter(inside["objects"]),
    )


def agent_threads(pid: int) -> list[str]:
    """Threads of an agent in ``pid``, as ps would show them."""
    return [name for name in from_outside(pid).threads if name.startswith(("sg:", "sgtop-agent"))]


def wait_without_agent(pid: int, timeout_s: float) -> float:
    """Wait until no thread of an agent is left; seconds waited.

    Raises:
        TimeoutError: there still is one.
    """
    start = time.monotonic()
    while left := agent_threads(pid):
        if time.monotonic() > start + timeout_s:
            raise TimeoutError(f"after {timeout_s:g} s process {pid} still has {left}")
        time.sleep(0.005)
    return time.monotonic() - start
