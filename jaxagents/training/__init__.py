"""The host's side of a training run.

Contains the loop over blocks of updates, the recorder with its checkpoints and their writer,
callbacks, trackers, the progress bar and the handling of signals. May import the vocabulary and
`compiler`. `evaluation`, `ippo` and the rooms above may import from here.
"""
