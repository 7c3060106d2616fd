"""All that knows XLA: how programs are compiled, and what a CPU computes faster in another form.

Every other room may import from here; this one imports nothing of the package. `plain_jax`
switches all of it off.
"""
