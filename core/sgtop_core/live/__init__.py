"""The parts of a live session that do I/O: ways to a server (``backend``), one rank's attachment (``link``), what is
seen from outside (``outside``). ``sgtop_core.session`` ties them together.
"""
