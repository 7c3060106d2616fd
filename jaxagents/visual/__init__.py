"""Pictures: learning curves, and episodes drawn and animated.

Imports `evaluation` and what is below; `experiments` and `cli` import from here.
"""
