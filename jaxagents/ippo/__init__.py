"""The IPPO agents: `base` is the algorithm from top to bottom.

Imports every room below; `experiments` and `cli` import from here.
"""
