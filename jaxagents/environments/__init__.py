"""Environments: the protocol, the registry, the adapters, and the batch that an agent plays.

Imports the vocabulary and `compiler`; `evaluation`, `ippo`, and the rooms above import from here.
"""
