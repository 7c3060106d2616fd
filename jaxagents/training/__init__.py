"""The host's side of a training run.

Contains the loop over blocks of updates, the recorder with its checkpoints and their writer,
callbacks, trackers, the progress bar and the handling of signals. Imports the top-level modules and
`compiler`. `evaluation`, `ippo`, `visual`, `experiments` and `cli` may import from here.
"""
