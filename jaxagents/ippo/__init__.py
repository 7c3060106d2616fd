"""The IPPO agents: `base` is the algorithm from top to bottom.

Imports every other package but `visual`, `experiments` and `cli`; the last two import from here.
"""
