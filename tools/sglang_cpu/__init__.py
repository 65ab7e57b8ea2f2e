"""A real, unmodified SGLang server on the CPU, with a tiny model of dummy weights: install, start, talk to it, stop it.

``python -m tools.sglang_cpu --help`` says how to use it by hand.
"""
