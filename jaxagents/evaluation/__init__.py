"""Evaluation of policies and of recorded runs.

Contains episodes and trajectories under a policy, statistics over episodes, the reading of run
directories, learning curves and the comparison of runs over seeds. Imports `environments`,
`training`, `compiler` and the top-level modules. `ippo`, `visual`, `experiments` and `cli` may
import from here.
"""
