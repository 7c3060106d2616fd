"""The host's side of a training: recorder, checkpoints, trackers, callbacks, progress, signals.

Imports the vocabulary and `compiler`; `evaluation`, `ippo`, and the rooms above import from here.
"""
