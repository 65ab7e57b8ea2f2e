"""GPU kernels: from the ring in the server's process to tables and gap histograms by forward mode.

``ring`` reads buffers, ``parse`` makes columns of them, ``clock`` puts them on CLOCK_MONOTONIC, ``attribute`` gives
them to forwards, ``table`` and ``gaps`` add up, ``names`` and ``categories`` say what a kernel is. ``tracker`` ties
it together for one rank.
"""
