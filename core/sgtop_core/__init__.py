"""From events to answers: one clock, steps, gaps, windows, findings, recordings."""
