"""The parts of a live session that do I/O: ways to a server (``backend``), one rank's attachment (``link``), what the
agents are asked for (``orders``), ranks that make no steps (``hung``), what is seen from outside (``outside``).
``sgtop_core.session`` ties them together.
"""
