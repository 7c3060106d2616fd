"""Everything specific to XLA: compile options, and operations in the form a CPU computes fastest.

Every other room may import from here; this one imports nothing of the package. `plain_jax`
switches all of it off.
"""
