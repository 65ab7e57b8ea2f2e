"""Histograms as they are shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """Log-scaled. ``edges_ms`` has one more element than ``counts``."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]
