"""Switches of a running scheduler: what can be turned, when every rank turns it, and the way back.

``protocol`` is the agreement between ranks, pure; ``page`` the memory that they share; ``known`` what this server can
switch and how; ``rank`` the part on the scheduler's main thread; ``control`` the part on the agent's thread.
"""
