"""Streams of events as an agent would send them, made from a seed: for ``sgtop demo``, for tests and for benches.

Nothing here is measured, and what uses it says "simulated" on screen.
"""
