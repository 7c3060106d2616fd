"""Environments: the protocol, the registry, adapters of libraries, the vectorised environment.

They import only the top-level modules and `compiler`. `evaluation`, `ippo`, `visual`, `experiments`
and `cli` may import them.
"""
