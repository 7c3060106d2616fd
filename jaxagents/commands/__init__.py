"""The commands of the command line, by what they are about.

Each module adds its commands' arguments by `add_to`. Everything heavy is imported inside the
commands, so that help and usage errors come at once.
"""
