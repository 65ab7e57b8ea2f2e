"""Pressure stall information: the share of time in which something waited for a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from .counters import read


@dataclass(frozen=True, slots=True)
class Pressure:
    """``some`` line of a pressure file. Shares are 0 to 1 over the last 10 s and 60 s; ``total_us`` is cumulative."""

    avg10: float
    avg60: float
    total_us: int


def parse(text: str) -> Pressure | None:
    """A ``/proc/pressure/cpu`` or ``cpu.pressure`` file; None where it has no ``some`` line."""
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "some":
            try:
                v = dict(x.split("=", 1) for x in rest.split())
                return Pressure(float(v["avg10"]) / 100, float(v["avg60"]) / 100, int(v["total"]))
            except (ValueError, KeyError):
                return None
    return None


def host_cpu(proc: str = "/proc") -> Pressure | None:
    """The host's CPU pressure; None where the kernel has none (psi=0) or it may not be read."""
    text = read(f"{proc}/pressure/cpu")
    return parse(text) if text else None


def cgroup_cpu(folder: str) -> Pressure | None:
    """CPU pressure of one cgroup (version 2)."""
    text = read(f"{folder}/cpu.pressure")
    return parse(text) if text else None
