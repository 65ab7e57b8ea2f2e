"""Kernel tracing in the scheduler's process: CUPTI control, never parsing.

``control.KernelControl`` is what the agent holds. Nothing here touches CUPTI before a client asks for kernels, and
nothing before the guard (``guard``) agrees. The records go from CUPTI into a ring (``agent/native/sgring.c``) that
sgtop reads; the scheduler's process reads only counters of it.
"""
