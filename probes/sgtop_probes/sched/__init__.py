"""Who takes the CPU from the scheduler: kernel scheduling samples, cgroup quotas, pressure, topology.

``open_best.open_best`` gives the best ``SchedSource`` that this host and user allow; the levels stand in docs/cpu.md.
"""
