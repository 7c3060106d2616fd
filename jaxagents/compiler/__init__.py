"""Everything specific to XLA: compile options, and operations in the form a CPU computes fastest.

Every other package may import from here; this one imports nothing of `jaxagents`. `plain_jax`
switches all of it off.
"""
