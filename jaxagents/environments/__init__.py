"""Environments: the protocol, the registry, adapters of libraries, and the batch an agent plays.

They import only the vocabulary and `compiler`; `evaluation`, `ippo` and the rooms above may import
them.
"""
