"""Findings: what is wrong with a server, with its evidence and a next step that can be pasted.

``base`` is what a rule is, ``engine`` runs the rules and remembers, ``rules`` lists them; one rule, one module.
"""
