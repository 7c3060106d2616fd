"""Episodes under a policy, their statistics, and the runs and seeds that are compared by them.

Imports `environments`, `training` and what is below; `ippo`, and the rooms above, import from here.
"""
