"""Real SGLang servers for tests: what one can be, and a pool that keeps one of them running at a time."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tools.sglang_cpu.install import ensure
from tools.sglang_cpu.server import CpuServer, free_port

WITNESS = Path(__file__).parents[2] / "tools" / "witness"


def ports() -> tuple[int, int]:
    """The range that tests take ports from: ``$SGTOP_TEST_PORTS`` (``FIRST-LAST``), else 31500 to 31699."""
    first, last = os.environ.get("SGTOP_TEST_PORTS", "31500-31699").split("-")
    return int(first), int(last)


@dataclass(frozen=True)
class Config:
    """A server. Two equal ones are the same server."""

    version: str = "0.5.20"
    tp: int = 1
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    prefix: tuple[str, ...] = ()
    spins: bool = False
    """Without ``--sleep-on-idle``: an idle scheduler turns its loop as fast as it can."""
    witness: bool = False
    """The witness of tools/witness is in the scheduler, and writes into ``Pool.folder``."""

    def logging_steps(self) -> Config:
        """The same, with every step in its log under its ``forward_ct`` (``steps_in_log``)."""
        return replace(
            self,
            flags=(*self.flags, "--decode-log-interval", "1"),
            env=(*self.env, ("SGLANG_LOG_FORWARD_ITERS", "1")),
        )


class Pool:
    """Starts servers on demand, one at a time: the machine may have two cores."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self._folder = tempfile.TemporaryDirectory(prefix="sgtop-servers-")
        self.folder = Path(self._folder.name)
        self._config: Config | None = None
        self._count = 0
        self.server: CpuServer | None = None

    def get(self, config: Config) -> CpuServer:
        """A healthy server of this kind: the one that runs, or a new one (the other is stopped first)."""
        if self._config == config and self.server is not None and self.server.alive():
            return self.server
        server = self.start(config)
        server.wait_healthy()
        return server

    def start(self, config: Config, *, port: int | None = None) -> CpuServer:
        """A new server that is still starting; whatever ran is stopped first."""
        self.stop()
        self._count += 1
        env = dict(config.env)
        if config.witness:
            env |= {"SGTOP_WITNESS": str(self.folder), "PYTHONPATH": str(WITNESS)}
        self.server = CpuServer(
            ensure(config.version),
            port=port or free_port(*ports()),
            log=self.folder / f"{self._count}-{config.version}-tp{config.tp}.log",
            # An idle scheduler would otherwise keep a core busy that the tests need.
            flags=[*([] if config.spins else ["--sleep-on-idle"]), *config.flags],
            env=env,
            prefix=config.prefix,
            tp=config.tp,
        )
        self._config = config
        return self.server

    def stop(self) -> None:
        """Stop what runs."""
        if self.server is not None:
            self.server.stop()
        self.server = self._config = None

    def close(self) -> None:
        """Stop what runs and forget the logs."""
        self.stop()
        self._folder.cleanup()


@dataclass(frozen=True)
class LoggedStep:
    """What SGLang's own log says of one step."""

    ct: int
    """forward_ct."""
    kind: str
    """``Prefill`` (EXTEND and MIXED) or ``Decode``."""
    tokens: int
    """Prefill: new prompt tokens. Decode: requests in the batch."""
    cached: int
    """Prefill: prompt tokens from the radix cache."""


_PREFILL = re.compile(r"Prefill batch \[(\d+)\], #new-seq: \d+, #new-token: (\d+), #cached-token: (\d+)")
_DECODE = re.compile(r"Decode batch \[(\d+)\], #running-req: (\d+)")


def steps_in_log(server: CpuServer, after: int = 0) -> list[LoggedStep]:
    """The steps with a ``forward_ct`` above ``after``, in the log of a server with ``logging_steps``, rank 0."""
    out = []
    for line in server.log.read_text(errors="replace").splitlines():
        if found := _PREFILL.search(line):
            ct, tokens, cached = map(int, found.groups())
            out.append(LoggedStep(ct, "Prefill", tokens, cached))
        elif found := _DECODE.search(line):
            ct, tokens = map(int, found.groups())
            out.append(LoggedStep(ct, "Decode", tokens, 0))
    return [step for step in out if step.ct > after]
