"""A real SGLang on a GPU host that has no network: a bundle made here, a model of dummy weights, a server there.

The host has Python 3.12, torch 2.11.0 (CUDA 13), triton, numpy, psutil, msgpack, nvidia-ml-py and nvcc already.
``python -m tools.sglang_gpu --help`` says how.
"""
