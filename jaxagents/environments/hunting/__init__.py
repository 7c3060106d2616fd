"""Hunting, the built-in predator-prey environment, with discrete or continuous actions.

It imports only the environment protocol and the vocabulary; `environments.registry` constructs it.
"""
