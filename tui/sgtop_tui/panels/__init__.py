"""The panels, in reading order. To add one: write its module, add its PANEL here, describe its terms in the glossary.

Where it stands and on which terminals it shows is in the PANEL itself (``row``, ``priority``, ``from_width``, …); the
board works out the rest.
"""

from __future__ import annotations

from . import cpu, decode, findings, forwards, gpus, kernels, log, modes, prefill, processes, ranks, stages, time
from .base import Panel

PANELS: tuple[Panel, ...] = (
    modes.PANEL,
    prefill.PANEL,
    decode.PANEL,
    forwards.PANEL,
    time.PANEL,
    stages.PANEL,
    kernels.PANEL,
    ranks.PANEL,
    cpu.PANEL,
    gpus.PANEL,
    processes.PANEL,
    log.PANEL,
    findings.PANEL,
)

BY_KEY: dict[str, Panel] = {panel.key: panel for panel in PANELS}
BY_NUMBER: dict[int, Panel] = {panel.number: panel for panel in PANELS if panel.number is not None}

__all__ = ["BY_KEY", "BY_NUMBER", "PANELS", "Panel"]
