"""Sides of an environment: some of its actors learn, and opponents play the others.

`Side` is what a user hands to an agent, and `SideBatch` what the agent plays. Opponents are members
of a `Pool`, which counts who wins against whom and may grow by the learner's past selves.
"""
