"""Sides of an environment: some of its actors learn, and opponents play the others.

A user gives a `Side` to an agent, which plays it as a `SideBatch`. Opponents are members of a
`Pool`, which counts the learner's wins against each and may add its past selves.
"""
