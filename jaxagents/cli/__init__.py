"""The command line: one module per group of commands, and their output.

Nothing imports from here. Commands import jax and the rest when they run, so that help and usage
errors appear at once.
"""
