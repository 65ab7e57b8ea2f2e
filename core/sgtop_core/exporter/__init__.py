"""OpenMetrics for Prometheus: counters straight from the frames, gauges from the snapshot (docs/export.md)."""
