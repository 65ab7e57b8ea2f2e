"""Kernel tracing in the scheduler's process: CUPTI control, never parsing.

``extension.setup`` is given to ``Agent.extend``. Nothing else is imported, and nothing touches CUPTI, before a client
asks for kernels. The records go from CUPTI into a ring (``agent/native/sgring.c``) that sgtop reads; the scheduler's
process reads only counters of it.
"""
