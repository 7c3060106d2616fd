"""Everything specific to XLA: compile options, and operations in forms that are fast on a CPU.

Every other package may import from here; this one imports nothing of `jaxagents`. `plain_jax`
switches all of it off.
"""
