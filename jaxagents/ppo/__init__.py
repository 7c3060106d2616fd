"""The mathematics of PPO: pure functions of one policy's samples, one formula each.

Imports the vocabulary and `compiler`; `ippo`, and the rooms above it, import from here.
"""
