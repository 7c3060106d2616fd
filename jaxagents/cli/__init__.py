"""The command line: one module per group of commands, and what they print.

Nothing imports from here. Everything heavy is imported inside the commands, so that help and usage
errors come at once.
"""
