"""The mathematics of PPO: pure functions of one policy's samples, one formula each.

Imports the top-level modules and `compiler`. `ippo`, `experiments` and `cli` may import from here.
"""
