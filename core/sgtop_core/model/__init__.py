"""The pure model: events in, snapshot out; no I/O and no clock of its own."""
