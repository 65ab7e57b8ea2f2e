"""Who takes the CPU from a rank: scheduling samples become the rank's ``cpu`` view, causes of gaps, and findings.

``rank`` and ``windows`` are pure; ``host_watch`` owns the threads that read this host.
"""
