"""Evaluation of policies and of recorded runs.

Contains episodes and trajectories under a policy, statistics over episodes, the reading of run
directories, learning curves and the comparison of runs over seeds. May import `environments`,
`training`, `compiler` and the vocabulary. `ippo` and the rooms above may import from here.
"""
